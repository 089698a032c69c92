/* What objects need where CPython has no GIL (3.13t and later), for CPython 3.11 to 3.15.
 *
 * With a GIL the locks and sections are empty: the GIL is the lock, and costs nothing here. A
 * critical section is a lock of one object that is given up, as the GIL is, while its thread waits
 * for something. So code that is right under the GIL is right in a critical section of the one
 * object that it changes.
 */
#ifndef MU_FREE_THREADING_H
#define MU_FREE_THREADING_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#ifdef Py_GIL_DISABLED
#define MU_FREE_THREADED 1
#else
#define MU_FREE_THREADED 0
#endif

/* --- sections of one object, or of two ------------------------------------------------------ */

#if MU_FREE_THREADED
#define MU_BEGIN_SECTION(object) Py_BEGIN_CRITICAL_SECTION(object)
#define MU_END_SECTION() Py_END_CRITICAL_SECTION()
#define MU_BEGIN_SECTION2(a, b) Py_BEGIN_CRITICAL_SECTION2(a, b)
#define MU_END_SECTION2() Py_END_CRITICAL_SECTION2()
#else
#define MU_BEGIN_SECTION(object) {
#define MU_END_SECTION() }
#define MU_BEGIN_SECTION2(a, b) {
#define MU_END_SECTION2() }
#endif

/* Each defines `FUNCTION_locked`: the function of a table, in a critical section of its object. */
#define MU_LOCKED(function)                                                                        \
    static PyObject *function##_locked(PyObject *object, PyObject *argument) {                     \
        PyObject *result;                                                                          \
        MU_BEGIN_SECTION(object);                                                                  \
        result = function(object, argument);                                                       \
        MU_END_SECTION();                                                                          \
        return result;                                                                             \
    }

#define MU_LOCKED_NEXT(function)                                                                   \
    static PyObject *function##_locked(PyObject *object) {                                         \
        PyObject *result;                                                                          \
        MU_BEGIN_SECTION(object);                                                                  \
        result = function(object);                                                                 \
        MU_END_SECTION();                                                                          \
        return result;                                                                             \
    }

#define MU_LOCKED_FAST(function)                                                                   \
    static PyObject *function##_locked(PyObject *object, PyObject *const *args, Py_ssize_t count,  \
                                       PyObject *keywords) {                                       \
        PyObject *result;                                                                          \
        MU_BEGIN_SECTION(object);                                                                  \
        result = function(object, args, count, keywords);                                          \
        MU_END_SECTION();                                                                          \
        return result;                                                                             \
    }

#define MU_LOCKED_POSITIONAL(function)                                                             \
    static PyObject *function##_locked(PyObject *object, PyObject *const *args,                    \
                                       Py_ssize_t count) {                                         \
        PyObject *result;                                                                          \
        MU_BEGIN_SECTION(object);                                                                  \
        result = function(object, args, count);                                                    \
        MU_END_SECTION();                                                                          \
        return result;                                                                             \
    }

#define MU_LOCKED_GET(function)                                                                    \
    static PyObject *function##_locked(PyObject *object, void *closure) {                          \
        PyObject *result;                                                                          \
        MU_BEGIN_SECTION(object);                                                                  \
        result = function(object, closure);                                                        \
        MU_END_SECTION();                                                                          \
        return result;                                                                             \
    }

#define MU_LOCKED_SET(function)                                                                    \
    static int function##_locked(PyObject *object, PyObject *value, void *closure) {               \
        int result;                                                                                \
        MU_BEGIN_SECTION(object);                                                                  \
        result = function(object, value, closure);                                                 \
        MU_END_SECTION();                                                                          \
        return result;                                                                             \
    }

/* --- locks of what no single object has ----------------------------------------------------- */

/* Zero is unlocked. The holder calls nothing that may run Python code: it would wait for itself. */
struct mu_py_lock {
#if MU_FREE_THREADED
    PyMutex mutex;
#else
    char unused;
#endif
};

static inline void mu_py_lock_take(struct mu_py_lock *lock) {
#if MU_FREE_THREADED
    PyMutex_Lock(&lock->mutex);
#else
    (void)lock;
#endif
}

static inline void mu_py_lock_release(struct mu_py_lock *lock) {
#if MU_FREE_THREADED
    PyMutex_Unlock(&lock->mutex);
#else
    (void)lock;
#endif
}

/* A new reference to what `*place` holds, NULL for nothing; `lock` guards the place. */
static inline PyObject *mu_py_shared_get(struct mu_py_lock *lock, PyObject *const *place) {
    mu_py_lock_take(lock);
    PyObject *held = Py_XNewRef(*place);
    mu_py_lock_release(lock);
    return held;
}

/* Puts a reference there, which it takes over; NULL puts nothing. */
static inline void mu_py_shared_set(struct mu_py_lock *lock, PyObject **place, PyObject *value) {
    mu_py_lock_take(lock);
    PyObject *before = *place;
    *place = value;
    mu_py_lock_release(lock);
    Py_XDECREF(before); /* may run Python code */
}

/* --- counts --------------------------------------------------------------------------------- */

/* A count that threads change at once, on paths where an atomic addition would be felt under a
 * GIL. */
#if MU_FREE_THREADED
typedef _Atomic uint32_t mu_py_count;
#else
typedef uint32_t mu_py_count;
#endif

static inline uint32_t mu_py_count_of(const mu_py_count *count) {
#if MU_FREE_THREADED
    return atomic_load_explicit(count, memory_order_relaxed);
#else
    return *count;
#endif
}

static inline void mu_py_count_up(mu_py_count *count) {
#if MU_FREE_THREADED
    atomic_fetch_add_explicit(count, 1, memory_order_relaxed);
#else
    (*count)++;
#endif
}

/* Not below 0. */
static inline void mu_py_count_down(mu_py_count *count) {
#if MU_FREE_THREADED
    uint32_t before = atomic_load_explicit(count, memory_order_relaxed);
    while (before > 0 &&
           !atomic_compare_exchange_weak_explicit(count, &before, before - 1, memory_order_relaxed,
                                                  memory_order_relaxed)) {
    }
#else
    *count -= *count > 0;
#endif
}

/* --- items ---------------------------------------------------------------------------------- */

/* A new reference to an item of a list; NULL with IndexError where the list has become shorter. */
static inline PyObject *mu_py_list_item(PyObject *list, Py_ssize_t index) {
#if PY_VERSION_HEX >= 0x030D0000
    return PyList_GetItemRef(list, index);
#else
    return Py_XNewRef(PyList_GetItem(list, index));
#endif
}

/* A new reference to a value of a dict; NULL without an exception for a key that is not there. */
static inline PyObject *mu_py_dict_value(PyObject *dict, PyObject *key) {
#if PY_VERSION_HEX >= 0x030D0000
    PyObject *value;
    return PyDict_GetItemRef(dict, key, &value) < 0 ? NULL : value;
#else
    return Py_XNewRef(PyDict_GetItemWithError(dict, key));
#endif
}

#endif
