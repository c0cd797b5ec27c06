# cython: language_level=3
"""A worker's handlers of signals: it ends with its trainer, and outlives a SIGTERM, SIGINT or SIGHUP to its group.
NOTE [ Group signals ] in signals.py.
"""

cdef extern from *:
    """
    #include <errno.h>
    #include <signal.h>
    #include <stdlib.h>
    #include <string.h>
    #include <sys/prctl.h>
    #include <unistd.h>

    /* A real-time signal that programs rarely use.  The kernel sends it when the *thread* that started this process
     * ends, so the handler checks whether the process itself is gone; if not, the signal will come again. */
    #define ORPHANED (SIGRTMAX - 3)
    static pid_t process_trainer;

    static void process_on_group_signal(int number, siginfo_t *from, void *context);

    /* The trainer itself sends it, queued, when it exits: NOTE [ Group signals ] in signals.py, 6.  A worker
     * that has no such handler yet dies of it. */
    static void process_on_orphaned(int number, siginfo_t *from, void *context)
    {
        struct sigaction term;
        (void)number, (void)context;
        if (getppid() != process_trainer)
            _exit(1);
        if (from->si_code == SI_QUEUE && from->si_pid == process_trainer && !sigaction(SIGTERM, NULL, &term) &&
            term.sa_flags & SA_SIGINFO && term.sa_sigaction == process_on_group_signal)
            _exit(0);
    }

    static int process_die_with(pid_t trainer)
    {
        struct sigaction action;
        sigset_t blocked;
        process_trainer = trainer;
        if (getppid() != trainer)
            return 0;
        memset(&action, 0, sizeof action);
        action.sa_sigaction = process_on_orphaned;
        action.sa_flags = SA_RESTART | SA_SIGINFO;
        sigaction(ORPHANED, &action, NULL);
        sigemptyset(&blocked);
        sigaddset(&blocked, ORPHANED);
        pthread_sigmask(SIG_UNBLOCK, &blocked, NULL);   /* a fork inherits its thread's mask */
        if (prctl(PR_SET_PDEATHSIG, ORPHANED))
            return 0;                                   /* NOTE [ Sandboxes ] */
        return getppid() == trainer;                    /* false if it died before the kernel was asked */
    }

    static const int process_group_signals[] = {SIGTERM, SIGINT, SIGHUP};
    static pid_t process_me;
    static struct sigaction process_before[3];          /* the former action of each of them */

    static void process_do_as_before(int at, siginfo_t *from, void *context)
    {
        const struct sigaction *before = &process_before[at];
        int number = process_group_signals[at];
        if (before->sa_flags & SA_SIGINFO)
            before->sa_sigaction(number, from, context);
        else if (before->sa_handler == SIG_DFL) {
            sigaction(number, before, NULL);
            raise(number);                              /* it comes when this handler has returned */
        } else if (before->sa_handler != SIG_IGN)
            before->sa_handler(number);
    }

    /* See NOTE [ Group signals ] in signals.py. */
    static void process_on_group_signal(int number, siginfo_t *from, void *context)
    {
        int saved = errno, at = number == SIGTERM ? 0 : number == SIGINT ? 1 : 2;
        pid_t me = getpid(), sender = from->si_code <= 0 ? from->si_pid : 0;    /* 0: the kernel sent it */
        if (me != process_me || sender == me)
            process_do_as_before(at, from, context);
        else if (number == SIGTERM && sender == process_trainer)
            _exit(0);                                   /* as torch's workers do */
        errno = saved;
    }

    static int process_outlive_signals(pid_t trainer)
    {
        struct sigaction action, before;
        sigset_t blocked;
        int k;
        process_trainer = trainer;
        process_me = getpid();
        memset(&action, 0, sizeof action);
        action.sa_sigaction = process_on_group_signal;
        action.sa_flags = SA_RESTART | SA_SIGINFO;
        sigemptyset(&blocked);
        for (k = 0; k < 3; k++) {
            if (sigaction(process_group_signals[k], NULL, &before))
                return -1;
            if (!(before.sa_flags & SA_SIGINFO) || before.sa_sigaction != process_on_group_signal)
                process_before[k] = before;             /* unless this was called before */
            if (sigaction(process_group_signals[k], &action, NULL))
                return -1;
            sigaddset(&blocked, process_group_signals[k]);
        }
        return pthread_sigmask(SIG_UNBLOCK, &blocked, NULL);
    }

    static int process_end(pid_t worker) { return sigqueue(worker, ORPHANED, (union sigval){0}); }

    /* glibc raises both of its limits when a block that it had mapped for itself is freed, up to 32 MiB.  The block is
     * never written to, so it takes no memory.  volatile: otherwise the compiler leaves both calls out. */
    static void process_keep_freed_memory(void)
    {
        void *volatile block = malloc(31 << 20);
        free(block);
    }
    """
    bint process_die_with(int trainer)
    int process_outlive_signals(int trainer)
    int process_end(int worker)
    void process_keep_freed_memory()


def die_with(int trainer) -> bool:
    """Have this process end at once when the trainer, its parent, ends, whatever it is doing then.

    Args:
        trainer: the trainer's pid.

    Returns:
        False if the trainer is not the parent: it has died already, or a fork server starts its workers.  Also if a
        sandbox refuses prctl.
    """
    return process_die_with(trainer)


def outlive_signals(int trainer) -> None:
    """Have this process survive a SIGTERM, a SIGINT or a SIGHUP to its group: NOTE [ Group signals ].

    A second call replaces handlers that other code has set meanwhile.

    Args:
        trainer: the pid of the process whose SIGTERM ends this one.
    """
    if process_outlive_signals(trainer):
        raise OSError("a handler for SIGTERM, SIGINT or SIGHUP could not be set")


def end(int worker) -> None:
    """End a worker that drops signals, even if other signals to it are pending: NOTE [ Group signals ].

    Args:
        worker: the pid of a process that this one has started.
    """
    if process_end(worker):
        raise OSError(f"process {worker} could not be signalled to end")


def keep_freed_memory() -> None:
    """Have malloc keep up to 62 MiB of what this process frees, because the next batch needs as much again.

    When a batch is in its slot, its samples are freed.  By default, glibc then gives their pages back to the kernel, if
    nothing lies behind them in the heap.  The next batch has to fault the pages in, and if samples are cheap, that takes
    half of the worker's time.
    """
    process_keep_freed_memory()


include "process/late_signals.pxi"
