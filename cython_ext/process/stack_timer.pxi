"""A timer that sends a signal to the thread that made it: stack_samples.py."""

cimport cython
from cpython.exc cimport PyErr_SetFromErrno
from posix.types cimport pid_t
from posix.unistd cimport getpid

cdef extern from *:
    """
    #include <signal.h>
    #include <string.h>
    #include <sys/syscall.h>
    #include <time.h>
    #include <unistd.h>

    #ifndef sigev_notify_thread_id
    #define sigev_notify_thread_id _sigev_un._tid
    #endif

    static int timer_make(timer_t *timer, int number)
    {
        struct sigevent event;
        memset(&event, 0, sizeof event);
        event.sigev_notify = SIGEV_THREAD_ID;   /* another thread's stack is not what is asked for */
        event.sigev_signo = number;
        event.sigev_notify_thread_id = (int)syscall(SYS_gettid);
        return timer_create(CLOCK_MONOTONIC, &event, timer);
    }

    static int timer_run(timer_t timer, long first, long period) /* nanoseconds; 0, 0: stop */
    {
        struct itimerspec times;
        times.it_value.tv_sec = first / 1000000000;
        times.it_value.tv_nsec = first % 1000000000;
        times.it_interval.tv_sec = period / 1000000000;
        times.it_interval.tv_nsec = period % 1000000000;
        return timer_settime(timer, 0, &times, NULL);
    }
    """
    ctypedef struct timer_t:
        pass
    int timer_make(timer_t *timer, int number)
    int timer_run(timer_t timer, long first, long period)
    int timer_delete(timer_t timer)


@cython.final
cdef class StackTimer:
    """Sends a signal to this thread again and again, while it runs.  The caller must handle the signal.

    Args:
        number: the signal.

    Raises:
        OSError: the kernel has no timer left (RLIMIT_SIGPENDING).
    """
    cdef timer_t timer
    cdef bint made
    cdef pid_t process      # a forked child has no timers, and one that it makes may get the number of this one

    def __cinit__(self, int number):
        if timer_make(&self.timer, number):
            PyErr_SetFromErrno(OSError)
        self.made, self.process = True, getpid()

    def __dealloc__(self):
        if self.made and self.process == getpid():
            timer_delete(self.timer)

    def start(self, long first, long period) -> None:
        """Send it after `first` nanoseconds, and then every `period`."""
        timer_run(self.timer, max(1, first), period)

    def stop(self) -> None:
        """Send no more.  One that was sent may still arrive."""
        timer_run(self.timer, 0, 0)
