/* Kernels, known by their names: torch.cuda._sleep() and filling.  operators.py brings a few operators of aten's.

   Any other kernel does nothing, and is counted: a test that needs one would go on with wrong numbers. */

#include "runtime.h"

typedef struct { unsigned x, y, z; } grid;

static struct kernel { const void *host; const char *name; } *kernels;
static size_t count, room, in_order;
static __thread struct { grid blocks, threads; size_t shared; cudaStream_t stream; } configuration;

void **__cudaRegisterFatBinary(void *binary)
{
    static void *handle;
    return &handle;
}

void __cudaRegisterFatBinaryEnd(void **handle) {}
void __cudaUnregisterFatBinary(void **handle) {}
char __cudaInitModule(void **handle) { return 1; }
void __cudaRegisterVar(void **handle, char *host, char *device, const char *name, int external, size_t size,
                       int constant, int global) {}

void __cudaRegisterFunction(void **handle, const char *host, char *device, const char *name, int limit, void *a,
                            void *b, void *c, void *d, int *warp)
{
    if (count == room)
        kernels = realloc(kernels, sizeof *kernels * (room = room ? 2 * room : 65536));
    kernels[count++] = (struct kernel){host, name};
}

static int compare(const void *a, const void *b)
{
    const struct kernel *one = a, *other = b;
    return (one->host > other->host) - (one->host < other->host);
}

static const char *name_of(const void *host)
{
    struct kernel wanted = {host, NULL}, *found;
    if (in_order != count) {
        qsort(kernels, count, sizeof *kernels, compare);
        in_order = count;
    }
    found = bsearch(&wanted, kernels, count, sizeof *kernels, compare);
    return found ? found->name : "an unknown one";
}

/* By the letter that stands for a type in a mangled name, its size. */
static int size_of(char type)
{
    static const char letters[] = "ldmifjshab";
    static const int sizes[] = {8, 8, 8, 4, 4, 4, 2, 1, 1, 1};
    const char *at = strchr(letters, type);
    return type && at ? sizes[at - letters] : 0;
}

static struct operation *known(const char *name, void **arguments)
{
    struct operation *made = NULL;
    const char *type = strstr(name, "FillFunctorI");
    if (strstr(name, "spin_kernel")) {
        made = operation(SPIN);
        made->seconds = *(int64_t *)arguments[0] / 2e9;
    } else if (type && strstr(name, "elementwise_kernel") && !strstr(name, "unrolled") && size_of(type[12])) {
        made = operation(FILL);
        made->size = size_of(type[12]);
        made->count = *(int *)arguments[0];
        made->to = *(void **)arguments[2];
        memcpy(made->value, arguments[1], made->size);
    }
    return made;
}

static cudaError_t launch(const void *host, void **arguments, cudaStream_t handle)
{
    BEGIN("a kernel");
    pthread_mutex_lock(&lock);
    struct stream *stream = stream_of(handle);
    const char *name = name_of(host);
    struct operation *made = known(name, arguments);
    counters[KERNELS]++;
    if (!made) {
        counters[UNKNOWN]++;
        software_cuda_log("unknown kernel: %s", name);
    } else if (stream)
        put(stream, made);
    pthread_mutex_unlock(&lock);
    return stream ? cudaSuccess : failed(cudaErrorInvalidResourceHandle);
}

cudaError_t cudaLaunchKernel(const void *host, grid blocks, grid threads, void **arguments, size_t shared,
                             cudaStream_t stream)
{
    return launch(host, arguments, stream);
}

cudaError_t __cudaLaunchKernel(void *kernel, grid blocks, grid threads, void **arguments, size_t shared,
                               cudaStream_t stream)
{
    return launch(kernel, arguments, stream);
}

cudaError_t cudaLaunchKernelExC(const cudaLaunchConfig_t *how, const void *host, void **arguments)
{
    return launch(host, arguments, how->stream);
}

cudaError_t __cudaGetKernel(void **kernel, const void *host)
{
    *kernel = (void *)host;
    return cudaSuccess;
}

unsigned __cudaPushCallConfiguration(grid blocks, grid threads, size_t shared, cudaStream_t stream)
{
    configuration.blocks = blocks;
    configuration.threads = threads;
    configuration.shared = shared;
    configuration.stream = stream;
    return 0;
}

cudaError_t __cudaPopCallConfiguration(grid *blocks, grid *threads, size_t *shared, void *stream)
{
    *blocks = configuration.blocks;
    *threads = configuration.threads;
    *shared = configuration.shared;
    *(cudaStream_t *)stream = configuration.stream;
    return cudaSuccess;
}

cudaError_t cudaFuncGetAttributes(struct cudaFuncAttributes *found, const void *host)
{
    memset(found, 0, sizeof *found);
    found->maxThreadsPerBlock = 1024;
    found->numRegs = 32;
    found->binaryVersion = found->ptxVersion = 90;
    return cudaSuccess;
}

cudaError_t cudaFuncSetAttribute(const void *host, enum cudaFuncAttribute attribute, int value) { return cudaSuccess; }

cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessor(int *blocks, const void *host, int size, size_t shared)
{
    *blocks = 2;
    return cudaSuccess;
}

cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int *blocks, const void *host, int size,
                                                                   size_t shared, unsigned flags)
{
    *blocks = 2;
    return cudaSuccess;
}

/* ---------------------------------------------------------------------------------------------- of operators.py */

static int on_device(cudaStream_t handle, int device, struct operation *made)
{
    int before = current_device;
    current_device = device;
    pthread_mutex_lock(&lock);
    struct stream *stream = stream_of(handle);
    counters[KERNELS]++;
    if (stream)
        put(stream, made);
    pthread_mutex_unlock(&lock);
    current_device = before;
    return stream ? cudaGetLastError() : cudaErrorInvalidResourceHandle; /* torch looks at it after each launch */
}

int software_cuda_call(cudaStream_t handle, int device, void (*call)(void *), void *argument)
{
    BEGIN("a kernel");
    struct operation *made = operation(CALL);
    made->call = call;
    made->argument = argument;
    return failed(on_device(handle, device, made));
}

int software_cuda_operate(cudaStream_t handle, int device, int code, void *to, const void *from, size_t size,
                          long value)
{
    BEGIN("a kernel");
    struct operation *made = operation(OPERATOR);
    made->code = code;
    made->to = to;
    made->from = from;
    made->count = size;
    memcpy(made->value, &value, sizeof value);
    return failed(on_device(handle, device, made));
}
