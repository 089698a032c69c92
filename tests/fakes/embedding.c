/* A program that embeds Python, has its own threads, and is built with ThreadSanitizer, as is
 * the C module that it loads.
 *
 *   embedding CODE ROUNDS
 *
 * CODE defines record(), which threads of the program call, and move(), which the main thread calls
 * meanwhile. Threads end all the time, without the interpreter's lock, as those of a native loader
 * do. The last round is that of a separate interpreter, which ends while its threads do.
 */
#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>

enum { THREADS = 4, LAPS = 20 };

static const char *code;
static atomic_bool failed;

static void call(const char *statement) {
    if (PyRun_SimpleString(statement) != 0) {
        atomic_store(&failed, true);
    }
}

static void *record_and_end(void *Py_UNUSED(argument)) {
    for (int lap = 0; lap < LAPS; lap++) {
        PyGILState_STATE gil = PyGILState_Ensure();
        call("record()");
        PyGILState_Release(gil);
    }
    return NULL;
}

static void start_all(pthread_t threads[THREADS], void *(*work)(void *), void *argument) {
    for (int i = 0; i < THREADS; i++) {
        if (pthread_create(&threads[i], NULL, work, argument) != 0) {
            fprintf(stderr, "no thread\n");
            exit(2);
        }
    }
}

static void join_all(pthread_t threads[THREADS]) {
    for (int i = 0; i < THREADS; i++) {
        pthread_join(threads[i], NULL);
    }
}

static void one_round(void) {
    pthread_t threads[THREADS];
    start_all(threads, record_and_end, NULL);
    call("move()");
    Py_BEGIN_ALLOW_THREADS;
    join_all(threads);
    Py_END_ALLOW_THREADS;
}

struct guest {
    PyInterpreterState *interpreter; /* borrowed */
    atomic_int gone;                 /* threads that have left the interpreter */
};

static void *visit(void *argument) {
    struct guest *guest = argument;
    PyThreadState *state = PyThreadState_New(guest->interpreter);
    PyEval_RestoreThread(state);
    call("record()");
    PyThreadState_Clear(state);
    PyThreadState_DeleteCurrent();
    atomic_fetch_add(&guest->gone, 1);
    return NULL;
}

static void round_of_an_interpreter(void) {
    pthread_t threads[THREADS];
    PyThreadState *own = PyThreadState_Get();
    PyThreadState *state = Py_NewInterpreter();
    struct guest guest = {.interpreter = PyThreadState_GetInterpreter(state)};
    call(code);
    start_all(threads, visit, &guest);
    Py_BEGIN_ALLOW_THREADS;
    while (atomic_load(&guest.gone) < THREADS) {
        sched_yield();
    }
    Py_END_ALLOW_THREADS;
    Py_EndInterpreter(state);
    PyThreadState_Swap(own);
    Py_BEGIN_ALLOW_THREADS;
    join_all(threads);
    Py_END_ALLOW_THREADS;
}

int main(int argc, char **argv) {
    if (argc != 3) {
        return 2;
    }
    code = argv[1];
    Py_Initialize();
    call(code);
    for (int i = 0; i < atoi(argv[2]) && !atomic_load(&failed); i++) {
        one_round();
    }
    round_of_an_interpreter();
    call("end()");
    return Py_FinalizeEx() != 0 || atomic_load(&failed);
}
