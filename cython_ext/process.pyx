# cython: language_level=3
"""What a worker process asks of the kernel."""

cdef extern from *:
    """
    #include <signal.h>
    #include <sys/prctl.h>
    #include <unistd.h>

    /* A real-time signal nobody uses by habit.  The kernel sends it when the *thread* that started this process
     * ends, so the handler asks whether the process itself is gone; if not, the signal will come again. */
    #define ORPHANED (SIGRTMAX - 3)
    static pid_t process_parent;

    static void process_on_orphaned(int signal) { (void)signal; if (getppid() != process_parent) _exit(1); }

    static pid_t process_die_with_parent(void)
    {
        struct sigaction action = {0};
        sigset_t blocked;
        process_parent = getppid();
        action.sa_handler = process_on_orphaned;
        action.sa_flags = SA_RESTART;
        sigaction(ORPHANED, &action, NULL);
        sigemptyset(&blocked);
        sigaddset(&blocked, ORPHANED);
        sigprocmask(SIG_UNBLOCK, &blocked, NULL);   /* a fork inherits its thread's mask */
        prctl(PR_SET_PDEATHSIG, ORPHANED);
        return getppid();                           /* another, if the parent died before the kernel was asked */
    }
    """
    int process_die_with_parent()


def die_with_parent() -> int:
    """Have this process end at once when its parent does, whatever it is doing then; returns the parent's pid.

    The parent may have died before this call: the caller compares the pid with the one it expects (parents_death.py).
    """
    return process_die_with_parent()
