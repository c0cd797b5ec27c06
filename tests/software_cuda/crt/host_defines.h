/* The one header that the PyPI package nvidia-cuda-runtime leaves out: to a compiler for the CPU its words say nothing. */
#define CUDARTAPI
#define CUDARTAPI_CDECL
#define CUDA_CB
#define __align__(n) __attribute__((aligned(n)))
#define __builtin_align__(n) __attribute__((aligned(n)))
#define __cudart_builtin__
#define __device_builtin__
#define __device_builtin_surface_type__
#define __device_builtin_texture_type__
#define __forceinline__ inline
#define __host__
#define __inline__ inline
#define __specialization_static
