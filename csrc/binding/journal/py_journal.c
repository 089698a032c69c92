/* Functions that read journals: those of other processes, whose files are read without the GIL, and
 * the one of this process. */
#include "core/args.h"
#include "core/state.h"
#include "journal/csv_parts.h"
#include "journal/journal_reader.h"
#include "journal/recovery.h"
#include "stages/recorder.h"
#include "stages/recorder_state.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* --- recover_rows -------------------------------------------------------------------------- */

enum { CSV_PATH_BYTES = 4096 + 2048 };

struct recovered {
    char csv_path[CSV_PATH_BYTES]; /* empty when there is no such file */
    uint64_t csv_bytes;            /* of it, those that come before the rows */
    struct mu_recovery recovery;
};

static int open_csv(const struct mu_journal_image *image, const char *journal_path,
                    struct recovered *recovered, int *fd, struct mu_error *err) {
    char *path = recovered->csv_path;
    mu_journal_image_csv_path(image, journal_path, path, CSV_PATH_BYTES);
    *fd = path[0] == '\0' ? -1 : open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
    if (*fd < 0 && path[0] != '\0' && errno != ENOENT && errno != ENOTDIR) {
        return mu_error_sys(err, "open", path);
    }
    return MU_OK;
}

/* The process goes on writing: what was in the CSV when its journal was read, and the rest. */
static int recover_from_living(const char *path, struct recovered *recovered,
                               struct mu_error *err) {
    struct mu_journal_image image;
    struct mu_recovered rows;
    int fd = -1, code = mu_journal_image_read(&image, path, err);
    if (code != MU_OK) {
        return code;
    }
    code = open_csv(&image, path, recovered, &fd, err);
    if (code == MU_OK && fd >= 0) {
        code = mu_journal_image_csv_prefix(&image, fd, &recovered->csv_bytes, err);
    }
    if (fd < 0) {
        recovered->csv_path[0] = '\0';
    } else {
        close(fd);
    }
    if (code == MU_OK) {
        code = mu_journal_image_rows(&image, &recovered->recovery.writer, &rows, err);
    }
    mu_journal_image_close(&image);
    return code;
}

/* All whole rows of the CSV, and those that only the journal has. */
static int recover_from_dead(const char *path, struct recovered *recovered, struct mu_error *err) {
    struct mu_journal_image image;
    struct stat status;
    int fd = -1, code = mu_journal_image_read_dead(&image, path, NULL, err);
    if (code != MU_OK) {
        return code;
    }
    code = open_csv(&image, path, recovered, &fd, err);
    if (code == MU_OK && fd >= 0) {
        code = fstat(fd, &status) != 0
                   ? mu_error_sys(err, "stat", recovered->csv_path)
                   : mu_csv_whole_bytes(fd, (uint64_t)status.st_size, &recovered->csv_bytes, err);
    }
    if (fd >= 0) {
        close(fd);
    }
    if (code == MU_OK) {
        char directory[CSV_PATH_BYTES], stem[MU_CSV_STEM_BYTES];
        mu_journal_image_csv_stem(&image, stem);
        snprintf(directory, sizeof(directory), "%s", recovered->csv_path);
        char *slash = strrchr(directory, '/');
        if (slash == NULL) {
            snprintf(directory, sizeof(directory), ".");
        } else {
            slash[slash == directory] = '\0';
        }
        code = mu_journal_recover(&image, directory, stem, &recovered->recovery, err);
    }
    if (fd < 0) {
        recovered->csv_path[0] = '\0';
    }
    mu_journal_image_close(&image);
    return code;
}

static int recover(const char *path, struct recovered *recovered, struct mu_error *err) {
    return mu_journal_is_held(path) ? recover_from_living(path, recovered, err)
                                    : recover_from_dead(path, recovered, err);
}

static PyObject *recovery_as_tuple(const struct recovered *recovered) {
    const struct mu_csv_writer *writer = &recovered->recovery.writer;
    PyObject *path = Py_NewRef(Py_None);
    if (recovered->csv_path[0] != '\0') {
        Py_SETREF(path, PyUnicode_DecodeFSDefault(recovered->csv_path));
    }
    if (path == NULL) {
        return NULL;
    }
    const char *rows = writer->buffer == NULL ? "" : writer->buffer;
    return Py_BuildValue("(NKy#)", path, (unsigned long long)recovered->csv_bytes, rows,
                         (Py_ssize_t)writer->length);
}

static PyObject *recover_rows(PyObject *Py_UNUSED(module), PyObject *argument) {
    PyObject *path;
    if (mu_py_path(argument, "journal_path", &path) < 0) {
        return NULL;
    }
    struct recovered *recovered = PyMem_RawCalloc(1, sizeof(*recovered));
    if (recovered == NULL) {
        Py_DECREF(path);
        return PyErr_NoMemory();
    }
    struct mu_error err = {0};
    int code;
    mu_csv_writer_init(&recovered->recovery.writer);
    Py_BEGIN_ALLOW_THREADS;
    code = recover(PyBytes_AS_STRING(path), recovered, &err);
    Py_END_ALLOW_THREADS;
    Py_DECREF(path);
    PyObject *result = code == MU_OK ? recovery_as_tuple(recovered) : mu_py_raise(&err);
    mu_recovery_free(&recovered->recovery);
    PyMem_RawFree(recovered);
    return result;
}

/* --- read_journal -------------------------------------------------------------------------- */

struct seen {
    struct mu_journal_image image;
    struct mu_recovered recovered;
    bool held;
};

static int read_snapshot(const char *path, struct seen *seen, struct mu_error *err) {
    struct mu_csv_writer writer;
    int code = mu_journal_image_read(&seen->image, path, err);
    if (code != MU_OK) {
        return code;
    }
    seen->held = mu_journal_is_held(path);
    mu_csv_writer_init(&writer);
    code = mu_journal_image_rows(&seen->image, &writer, &seen->recovered, err);
    mu_csv_writer_free(&writer);
    if (code == MU_ERR_STATE) {
        return MU_OK; /* what its threads do is readable all the same */
    }
    if (code != MU_OK) {
        mu_journal_image_close(&seen->image);
    }
    return code;
}

static PyObject *text_of(const char *text, size_t length) {
    return PyUnicode_DecodeUTF8(text == NULL ? "" : text, text == NULL ? 0 : (Py_ssize_t)length,
                                "replace");
}

/* A text of the header, and a path. It may fill its field without a NUL. */
#define FIELD_TEXT(field) text_of(field, strnlen(field, sizeof(field)))
#define FIELD_PATH(field)                                                                          \
    PyUnicode_DecodeFSDefaultAndSize(field, (Py_ssize_t)strnlen(field, sizeof(field)))

static PyObject *stage_as_dict(const struct mu_seen_stage *stage, bool finished) {
    PyObject *name = text_of(stage->name, stage->name_length);
    if (name == NULL) {
        return NULL;
    }
    long long step = stage->step, start = stage->start_ns, end = stage->end_ns;
    if (!finished) {
        return Py_BuildValue("{sNsLsL}", "name", name, "step", step, "start_ns", start);
    }
    return Py_BuildValue("{sNsLsLsL}", "name", name, "step", step, "start_ns", start, "end_ns",
                         end);
}

static PyObject *stages_as_list(const struct mu_seen_stage *stages, int count, bool finished) {
    PyObject *list = PyList_New(count);
    for (int i = 0; list != NULL && i < count; i++) {
        PyObject *stage = stage_as_dict(&stages[i], finished);
        if (stage == NULL) {
            Py_CLEAR(list);
        } else {
            PyList_SET_ITEM(list, i, stage);
        }
    }
    return list;
}

static PyObject *thread_as_dict(const struct mu_seen_thread *thread) {
    PyObject *open = stages_as_list(thread->open, thread->depth, false);
    PyObject *last = open == NULL ? NULL : stages_as_list(thread->last, thread->last_count, true);
    PyObject *tag = last == NULL ? NULL : text_of(thread->tag, thread->tag_length);
    PyObject *thread_name =
        tag == NULL ? NULL : text_of(thread->thread_name, thread->thread_name_length);
    if (thread_name == NULL) {
        Py_XDECREF(open);
        Py_XDECREF(last);
        Py_XDECREF(tag);
        return NULL;
    }
    return Py_BuildValue("{sIsNsNsLsNsN}", "tid", (unsigned)thread->tid, "tag", tag, "thread_name",
                         thread_name, "step", (long long)thread->step, "open", open, "last", last);
}

static bool see_thread(struct mu_recorder *own, struct mu_journal_image *image, uint32_t chunk,
                       struct mu_seen_thread *thread) {
    if (own == NULL) {
        return mu_journal_image_thread(image, chunk, thread);
    }
    mu_recording_hold(own);
    bool seen = mu_journal_image_thread(image, chunk, thread);
    mu_recording_let_go(own);
    return seen;
}

/* own: the recorder whose journal it is; NULL: that of another process, or a copy. */
static PyObject *threads_as_list(struct mu_recorder *own, struct mu_journal_image *image,
                                 PyObject *(*as_object)(const struct mu_seen_thread *)) {
    struct mu_seen_thread *thread = PyMem_RawMalloc(sizeof(*thread));
    if (thread == NULL) {
        return PyErr_NoMemory();
    }
    PyObject *list = PyList_New(0);
    for (uint32_t i = 0; list != NULL && i < image->chunk_count; i++) {
        if (see_thread(own, image, i, thread) && mu_py_append_new(list, as_object(thread)) < 0) {
            Py_CLEAR(list);
        }
    }
    PyMem_RawFree(thread);
    return list;
}

/* Puts a new reference into the dict. */
static int put(PyObject *dict, const char *key, PyObject *value) {
    int rc = value == NULL ? -1 : PyDict_SetItemString(dict, key, value);
    Py_XDECREF(value);
    return rc;
}

static int put_identity(PyObject *dict, const struct mu_journal_header *header) {
    return put(dict, "pid", PyLong_FromLong(header->pid)) < 0 ||
                   put(dict, "rank", PyLong_FromLong(header->rank)) < 0 ||
                   put(dict, "world_size", PyLong_FromLong(header->world_size)) < 0 ||
                   put(dict, "attempt", PyLong_FromUnsignedLong(header->attempt)) < 0 ||
                   put(dict, "host", FIELD_TEXT(header->host)) < 0 ||
                   put(dict, "label", FIELD_TEXT(header->label)) < 0 ||
                   put(dict, "log_dir", FIELD_PATH(header->log_dir)) < 0 ||
                   put(dict, "csv_name", FIELD_PATH(header->csv_name)) < 0 ||
                   put(dict, "boot_id", FIELD_TEXT(header->boot_id)) < 0 ||
                   put(dict, "process_start", PyLong_FromUnsignedLongLong(header->process_start)) <
                       0
               ? -1
               : 0;
}

/* Each beat takes an anchor. 0 where there is none. */
static long long last_anchor_ns(const struct seen *seen) {
    const struct mu_anchor *newest = mu_timeline_newest(&seen->image.timeline);
    return newest == NULL ? 0 : newest->mono_ns;
}

static int put_state(PyObject *dict, struct seen *seen) {
    const struct mu_journal_header *header = seen->image.header;
    long long beat = atomic_load(&header->heartbeat_real_ns);
    return put(dict, "heartbeat_ns", PyLong_FromLongLong(beat)) < 0 ||
                   put(dict, "time_offset_ns", PyLong_FromLongLong(seen->image.user_offset_ns)) <
                       0 ||
                   put(dict, "real_offset_ns", PyLong_FromLongLong(seen->image.real_offset_ns)) <
                       0 ||
                   put(dict, "beat_mono_ns", PyLong_FromLongLong(last_anchor_ns(seen))) < 0 ||
                   put(dict, "held", PyBool_FromLong(seen->held)) < 0 ||
                   put(dict, "closed", PyBool_FromLong(atomic_load(&header->closed) != 0)) < 0 ||
                   put(dict, "dropped",
                       PyLong_FromUnsignedLongLong(mu_journal_image_dropped(&seen->image))) < 0 ||
                   put(dict, "epoch", PyLong_FromUnsignedLongLong(seen->image.epoch)) < 0 ||
                   put(dict, "csv_bytes", PyLong_FromUnsignedLongLong(seen->image.csv_bytes)) < 0 ||
                   put(dict, "bad_records",
                       PyLong_FromUnsignedLongLong(seen->recovered.bad_records)) < 0 ||
                   put(dict, "lanes", threads_as_list(NULL, &seen->image, thread_as_dict)) < 0
               ? -1
               : 0;
}

static PyObject *seen_as_dict(struct seen *seen) {
    PyObject *dict = PyDict_New();
    if (dict != NULL && (put_identity(dict, seen->image.header) < 0 || put_state(dict, seen) < 0)) {
        Py_CLEAR(dict);
    }
    return dict;
}

static PyObject *read_journal(PyObject *Py_UNUSED(module), PyObject *argument) {
    PyObject *path;
    if (mu_py_path(argument, "journal_path", &path) < 0) {
        return NULL;
    }
    struct seen *seen = PyMem_RawCalloc(1, sizeof(*seen));
    if (seen == NULL) {
        Py_DECREF(path);
        return PyErr_NoMemory();
    }
    struct mu_error err = {0};
    int code;
    Py_BEGIN_ALLOW_THREADS;
    code = read_snapshot(PyBytes_AS_STRING(path), seen, &err);
    Py_END_ALLOW_THREADS;
    Py_DECREF(path);
    PyObject *result = NULL;
    if (code == MU_OK) {
        result = seen_as_dict(seen);
        mu_journal_image_close(&seen->image);
    } else {
        mu_py_raise(&err);
    }
    PyMem_RawFree(seen);
    return result;
}

/* --- open_stages --------------------------------------------------------------------------- */

static PyObject *open_names(const struct mu_seen_thread *thread) {
    PyObject *names = PyTuple_New(thread->depth);
    for (int i = 0; names != NULL && i < thread->depth; i++) {
        PyObject *name = text_of(thread->open[i].name, thread->open[i].name_length);
        if (name == NULL) {
            Py_CLEAR(names);
        } else {
            PyTuple_SET_ITEM(names, i, name);
        }
    }
    return names;
}

/* Only the thread that calls set_step knows the step at once; on others each stage that opens
 * brings it. A stage around several steps has that of its begin. */
static int64_t newest_step(const struct mu_seen_thread *thread) {
    int64_t open = thread->depth > 0 ? thread->open[thread->depth - 1].step : thread->step;
    return open > thread->step ? open : thread->step;
}

static PyObject *thread_as_tuple(const struct mu_seen_thread *thread) {
    PyObject *names = open_names(thread);
    PyObject *tag = names == NULL ? NULL : text_of(thread->tag, thread->tag_length);
    if (tag == NULL) {
        Py_XDECREF(names);
        return NULL;
    }
    return Py_BuildValue("(INLN)", (unsigned)thread->tid, tag, (long long)newest_step(thread),
                         names);
}

static PyObject *open_stages(PyObject *module, PyObject *Py_UNUSED(ignored)) {
    struct mu_recorder *recorder = mu_py_recorder(mu_state_of(module));
    if (recorder == NULL) {
        return NULL;
    }
    mu_recorder_check_fork(recorder);
    if (recorder->broken) {
        return PyList_New(0);
    }
    struct mu_journal_image image;
    struct mu_error err = {0};
    mu_recording_hold(recorder);
    int code = mu_journal_image_open(&image, recorder->journal.base, MU_JOURNAL_BYTES, &err);
    mu_recording_let_go(recorder);
    return code == MU_OK ? threads_as_list(recorder, &image, thread_as_tuple) : mu_py_raise(&err);
}

PyDoc_STRVAR(recover_rows_doc,
             "recover_rows($module, journal_path, /)\n--\n\n"
             "What the process of a journal recorded and did not write: (csv, csv_bytes, rows).");
PyDoc_STRVAR(read_journal_doc,
             "read_journal($module, journal_path, /)\n--\n\n"
             "What the process of a journal does, or did last. Times are Unix nanoseconds.");
PyDoc_STRVAR(open_stages_doc,
             "open_stages($module, /)\n--\n\n"
             "What this process does now, by timer and thread: (tid, tag, step, open stages).");

static PyMethodDef functions[] = {
    {"recover_rows", recover_rows, METH_O, recover_rows_doc},
    {"read_journal", read_journal, METH_O, read_journal_doc},
    {"open_stages", open_stages, METH_NOARGS, open_stages_doc},
    {NULL, NULL, 0, NULL},
};

int mu_py_journal_exec(PyObject *module) {
    return PyModule_AddFunctions(module, functions);
}
