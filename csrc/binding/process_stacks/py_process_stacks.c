/* Reads the Python stacks of this process, and checks at first use whether it reads them right. */
#include "process_stacks/py_process_stacks.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "core/args.h"
#include "process_stacks/py_layout.h"
#include "process_stacks/stack_record.h"
#include "stages/stack_service.h"
#include "stages/state.h"

/* --- the check ------------------------------------------------------------------------------- */

static bool same_text(PyObject *text, const char *read, size_t length, bool keeps_end) {
    Py_ssize_t known_length;
    const char *known = PyUnicode_AsUTF8AndSize(text, &known_length);
    if (known == NULL) {
        PyErr_Clear(); /* lone surrogates: not compared */
        return true;
    }
    size_t skip = (size_t)known_length > length ? (size_t)known_length - length : 0;
    return length > 0 && length <= (size_t)known_length &&
           memcmp(keeps_end ? known + skip : known, read, length) == 0;
}

static bool same_frame(PyFrameObject *frame, const struct mu_frame_names *names, uint32_t number) {
    if (number == 0) {
        return false;
    }
    const struct mu_frame_place *place = &names->places[number - 1];
    const struct mu_code_name *name = &names->codes[place->code - 1];
    PyCodeObject *code = PyFrame_GetCode(frame);
    bool same = same_text(code->co_qualname, name->function, name->function_length, false) &&
                same_text(code->co_filename, name->file, name->file_length, true) &&
                place->line == PyFrame_GetLineNumber(frame);
    Py_DECREF(code);
    return same;
}

/* Compares the stack that was read with the one that Python tells, from the innermost frame on. */
static bool same_frames(const struct mu_stack_record *record, const uint32_t *numbers) {
    const struct mu_raw_stack *stack = &record->walk->stack;
    PyFrameObject *frame = PyThreadState_GetFrame(PyThreadState_Get());
    bool same = frame != NULL;
    for (uint32_t i = 0; same && i < stack->count; i++) {
        same = frame != NULL && same_frame(frame, &record->names, numbers[i]);
        PyFrameObject *back = frame == NULL ? NULL : PyFrame_GetBack(frame);
        Py_XDECREF((PyObject *)frame);
        frame = back;
    }
    same = same && (frame == NULL || stack->cut);
    Py_XDECREF((PyObject *)frame);
    return same;
}

static bool reads_own_stack(struct mu_stack_record *record) {
    uint32_t numbers[MU_STACK_DEPTH_MAX];
    uint64_t tid = (uint64_t)syscall(SYS_gettid);
    struct mu_walk *walk = record->walk;
    mu_walk_list(walk);
    for (uint32_t i = 0; i < walk->thread_count; i++) {
        if (walk->threads[i].tid == tid && mu_walk_stack(walk, &walk->threads[i])) {
            mu_frame_names_of(&record->names, &record->reader->layout, &record->memory,
                              &walk->stack, numbers);
            return !walk->stack.torn && same_frames(record, numbers);
        }
    }
    return false;
}

static void check(struct mu_stack_reader *reader) {
    struct mu_stack_record record;
    if (mu_stack_record_init(&record, reader, NULL) != MU_OK) {
        return;
    }
    reader->ready = reads_own_stack(&record);
    mu_stack_record_reset(&record);
    if (!reader->ready) {
        snprintf(reader->off, sizeof(reader->off),
                 "a stack that is known was not read right in Python %.20s", PY_VERSION);
    }
}

static struct mu_stack_reader *new_reader(void) {
    struct mu_stack_reader *reader = calloc(1, sizeof(*reader));
    if (reader == NULL) {
        return NULL;
    }
    reader->python_major = PY_MAJOR_VERSION;
    reader->python_minor = PY_MINOR_VERSION;
    const char *off = mu_py_layout(&reader->layout);
    if (off != NULL) {
        snprintf(reader->off, sizeof(reader->off), "%s", off);
        return reader;
    }
    check(reader);
    return reader;
}

const struct mu_stack_reader *mu_py_stack_reader(struct mu_state *state) {
    PyFrameObject *frame = PyThreadState_GetFrame(PyThreadState_Get());
    if (state->stack_reader == NULL && frame != NULL) {
        struct mu_stack_reader *reader = new_reader(), *none = NULL;
        if (!atomic_compare_exchange_strong(&state->stack_reader, &none, reader)) {
            free(reader); /* another thread was first */
        }
    }
    Py_XDECREF((PyObject *)frame);
    return state->stack_reader;
}

/* --- functions ------------------------------------------------------------------------------- */

PyDoc_STRVAR(stacks_off_doc, "stacks_off($module, /)\n--\n\n"
                             "Why read_stacks() cannot read the stacks of this process, \"\" when\n"
                             "it can.");

static PyObject *stacks_off(PyObject *module, PyObject *Py_UNUSED(ignored)) {
    const struct mu_stack_reader *reader = mu_py_stack_reader(mu_state_of(module));
    return PyUnicode_FromString(reader == NULL ? "there was no memory" : reader->off);
}

/* One round, or `rounds` of them, as JSON in memory that the caller frees. */
static int read_rounds(const struct mu_stack_reader *reader, int64_t rounds, char **text,
                       size_t *length, struct mu_error *err) {
    struct mu_stack_record record;
    const struct mu_stack_origin origin = {
        .id = "", .kind = "dump", .label = "", .host = "", .rank = -1};
    FILE *out = open_memstream(text, length);
    if (out == NULL) {
        return mu_error_no_memory(err, "stacks");
    }
    int code = mu_stack_record_init(&record, reader, err);
    if (code == MU_OK) {
        for (int64_t i = 0; i < rounds; i++) {
            mu_stack_record_round(&record, 0);
        }
        mu_stack_record_write(&record, &origin, out);
        mu_stack_record_reset(&record);
    }
    bool failed = ferror(out) != 0;
    failed = fclose(out) != 0 || failed;
    return code == MU_OK && failed ? mu_error_no_memory(err, "stacks") : code;
}

PyDoc_STRVAR(read_stacks_doc,
             "read_stacks($module, rounds=1, /)\n--\n\n"
             "The Python stacks of all threads, read `rounds` times without the GIL, as JSON.\n\n"
             "RuntimeError where stacks_off() says why not.");

static PyObject *read_stacks(PyObject *module, PyObject *const *args, Py_ssize_t count) {
    const struct mu_stack_reader *reader = mu_py_stack_reader(mu_state_of(module));
    int64_t rounds = 1;
    if (count > 1) {
        return PyErr_Format(PyExc_TypeError, "read_stacks takes at most 1 argument, not %zd",
                            count);
    }
    if (count == 1 && mu_py_int64_in(args[0], "rounds", 1, 1000000, &rounds) < 0) {
        return NULL;
    }
    if (reader == NULL || !reader->ready) {
        return PyErr_Format(PyExc_RuntimeError, "stacks are off: %s",
                            reader == NULL ? "there was no memory" : reader->off);
    }
    struct mu_error err = {0};
    char *text = NULL;
    size_t length = 0;
    int code;
    Py_BEGIN_ALLOW_THREADS;
    code = read_rounds(reader, rounds, &text, &length, &err);
    Py_END_ALLOW_THREADS;
    PyObject *result =
        code == MU_OK ? PyBytes_FromStringAndSize(text, (Py_ssize_t)length) : mu_py_raise(&err);
    free(text);
    return result;
}

static PyMethodDef methods[] = {
    {"stacks_off", stacks_off, METH_NOARGS, stacks_off_doc},
    {"read_stacks", (PyCFunction)(void (*)(void))read_stacks, METH_FASTCALL, read_stacks_doc},
    {NULL, NULL, 0, NULL},
};

int mu_py_process_stacks_exec(PyObject *module) {
    return PyModule_AddFunctions(module, methods);
}
