#include "stages/py_gpu_events.h"

#include <string.h>

#include "core/warnings.h"
#include "cuda/color.h"
#include "cuda/py_cuda.h"

enum { CHOICES = 512 };

static const uint32_t blue = 0xff0000ff;

/* A cache of whether the pattern cuda_stages matches a name: its hash but for the two lowest bits,
 * which say that the choice is known, and what it is. The place of a name follows from its hash.
 * When another name takes its place, the pattern is run again. */
struct mu_gpu_choice {
    _Atomic uint64_t word;
};

enum { CHOICE_KNOWN = 1, CHOICE_GPU = 2, CHOICE_BITS = 3 };

/* --- arguments ---------------------------------------------------------------------------- */

static int color_of(PyObject *color, uint32_t *argb) {
    struct mu_error err = {0};
    if (PyUnicode_Check(color)) {
        struct mu_py_text text;
        if (mu_py_utf8(color, "color", &text) < 0) {
            return -1;
        }
        if (mu_color_parse(text.bytes, (size_t)text.length, argb, &err) == MU_OK) {
            return 0;
        }
    } else if (PyIndex_Check(color) && !PyBool_Check(color)) {
        int64_t number;
        if (mu_py_int64(color, "color", &number) < 0) {
            return -1;
        }
        if (mu_color_from_int(number, argb, &err) == MU_OK) {
            return 0;
        }
    } else {
        PyErr_Format(PyExc_TypeError, "color must be a str or an int, not %.100s (%.200R)",
                     Py_TYPE(color)->tp_name, color);
        return -1;
    }
    mu_py_raise(&err);
    return -1;
}

int mu_py_appearance_of(PyObject *color, PyObject *domain, struct mu_py_appearance *appearance) {
    appearance->argb = blue;
    appearance->domain = (struct mu_py_text){NULL, 0};
    if (color != NULL && color_of(color, &appearance->argb) < 0) {
        return -1;
    }
    if (domain == NULL || domain == Py_None) {
        return 0;
    }
    if (!PyUnicode_Check(domain)) {
        PyErr_Format(PyExc_TypeError, "domain_name must be str or None, not %.100s (%.200R)",
                     Py_TYPE(domain)->tp_name, domain);
        return -1;
    }
    return mu_py_utf8(domain, "domain_name", &appearance->domain);
}

/* The `search` method of the pattern; a new reference. */
static PyObject *search_of(PyObject *cuda_stages) {
    if (!PyUnicode_Check(cuda_stages) && !PyObject_HasAttrString(cuda_stages, "search")) {
        PyErr_Format(PyExc_TypeError,
                     "cuda_stages must be a regular expression (str or re.Pattern) or None, not "
                     "%.100s (%.200R)",
                     Py_TYPE(cuda_stages)->tp_name, cuda_stages);
        return NULL;
    }
    PyObject *re = PyImport_ImportModule("re");
    PyObject *error = re == NULL ? NULL : PyObject_GetAttrString(re, "error");
    PyObject *pattern = error == NULL ? NULL : PyObject_CallMethod(re, "compile", "O", cuda_stages);
    if (pattern == NULL && error != NULL && PyErr_ExceptionMatches(error)) {
        PyErr_Clear();
        PyErr_Format(PyExc_ValueError, "cuda_stages must be a valid regular expression, not %.200R",
                     cuda_stages);
    }
    PyObject *search = pattern == NULL ? NULL : PyObject_GetAttrString(pattern, "search");
    Py_XDECREF(error);
    Py_XDECREF(pattern);
    Py_XDECREF(re);
    return search;
}

/* --- set-up ------------------------------------------------------------------------------- */

/* A tool attaches when the process starts, so one check is enough. Without memory, the next timer
 * tries again. */
static void attach_nvtx(struct mu_state *state) {
    struct mu_nvtx *nvtx = NULL;
    int code = MU_OK;
    mu_py_lock_take(&state->lock);
    if (!state->nvtx_asked) {
        code = mu_nvtx_create(&nvtx, NULL);
        state->nvtx = nvtx;
        state->nvtx_asked = code == MU_OK;
    }
    mu_py_lock_release(&state->lock);
    if (code != MU_OK) {
        mu_py_warn(state, "nvtx_memory", "there is no memory for NVTX ranges; they are left out");
    }
}

static int choose_stages(struct mu_py_gpu_events *events, PyObject *cuda_stages) {
    if (cuda_stages == NULL || cuda_stages == Py_None) {
        return 0;
    }
    events->search = search_of(cuda_stages);
    if (events->search == NULL) {
        return -1;
    }
    events->choices = PyMem_Calloc(CHOICES, sizeof(*events->choices));
    return 0; /* without memory for choices, the pattern is run for each stage */
}

int mu_py_gpu_events_init(struct mu_py_gpu_events *events, struct mu_state *state, const char *tag,
                          int use_cuda, PyObject *cuda_stages) {
    attach_nvtx(state);
    if (choose_stages(events, cuda_stages) < 0 || (use_cuda && mu_py_cuda_use(state) < 0)) {
        mu_py_gpu_events_clear(events);
        return -1;
    }
    const struct mu_recorder *recorder = state->recorder;
    events->exchange = &state->exchange;
    events->use_cuda = use_cuda && recorder->gpu != NULL;
    events->nvtx = state->nvtx;
    events->category = tag[0] == '\0' ? NULL : tag;
    events->any = events->use_cuda || mu_nvtx_attached(events->nvtx);
    return 0;
}

void mu_py_gpu_events_clear(struct mu_py_gpu_events *events) {
    Py_CLEAR(events->search);
    PyMem_Free(events->choices);
    memset(events, 0, sizeof(*events));
}

/* --- stages ------------------------------------------------------------------------------- */

static const struct mu_nvtx_range *range_of(struct mu_py_gpu_events *events,
                                            const struct mu_py_name *name,
                                            const struct mu_py_appearance *appearance) {
    if (!mu_nvtx_attached(events->nvtx)) {
        return NULL;
    }
    struct mu_nvtx_key key = {
        .name = name->bytes,
        .name_length = (size_t)name->length,
        .category = events->category,
        .category_length = events->category == NULL ? 0 : strlen(events->category),
        .argb = appearance == NULL ? blue : appearance->argb,
    };
    if (appearance != NULL && appearance->domain.bytes != NULL) {
        key.domain = appearance->domain.bytes;
        key.domain_length = (size_t)appearance->domain.length;
    }
    return mu_nvtx_range_get(events->nvtx, &key);
}

/* 1, 0, or -1 with an exception. */
static int ask_pattern(PyObject *search, const struct mu_py_name *name) {
    PyObject *text = PyUnicode_DecodeUTF8(name->bytes, name->length, "replace");
    PyObject *match = text == NULL ? NULL : PyObject_CallOneArg(search, text);
    int gpu = match == NULL ? -1 : match != Py_None;
    Py_XDECREF(match);
    Py_XDECREF(text);
    return gpu;
}

static int wants_gpu(struct mu_py_gpu_events *events, const struct mu_py_name *name) {
    if (!events->use_cuda || events->search == NULL) {
        return events->use_cuda;
    }
    if (events->choices == NULL) {
        return ask_pattern(events->search, name);
    }
    struct mu_gpu_choice *choice = &events->choices[name->hash % CHOICES];
    uint64_t hash = (name->hash & ~(uint64_t)CHOICE_BITS) | CHOICE_KNOWN;
    uint64_t known = atomic_load_explicit(&choice->word, memory_order_relaxed);
    if ((known & ~(uint64_t)CHOICE_GPU) == hash) {
        return (known & CHOICE_GPU) != 0;
    }
    int gpu = ask_pattern(events->search, name);
    if (gpu >= 0) {
        atomic_store_explicit(&choice->word, hash | (gpu > 0 ? CHOICE_GPU : 0),
                              memory_order_relaxed);
    }
    return gpu;
}

int mu_py_gpu_events_start(struct mu_py_gpu_events *events, struct mu_thread_buffer *buffer,
                           const struct mu_py_name *name,
                           const struct mu_py_appearance *appearance) {
    int gpu = wants_gpu(events, name);
    if (gpu < 0) {
        return -1;
    }
    if (gpu == 0 && events->use_cuda) {
        mu_cuda_look(buffer->recorder->gpu);
    }
    if (gpu > 0) {
        mu_py_exchange_find(events->exchange); /* for mu_py_cuda_stream */
    }
    struct mu_gpu_events engine = {.range = range_of(events, name, appearance), .gpu = gpu > 0};
    mu_py_recording_begin(buffer);
    mu_thread_buffer_start_with(buffer, name->bytes, (size_t)name->length, name->hash, &engine);
    mu_py_recording_end(buffer);
    return 0;
}

void mu_py_gpu_events_register(struct mu_py_gpu_events *events, const struct mu_py_name *name,
                               const struct mu_py_appearance *appearance) {
    range_of(events, name, appearance);
}

/* --- functions of the module -------------------------------------------------------------- */

enum { WINDOW_ARGB = 0x7fd08700 }; /* amber, unlike the blue of stages */

static PyObject *nvtx_state(PyObject *module, PyObject *Py_UNUSED(ignored)) {
    struct mu_state *state = mu_state_of(module);
    attach_nvtx(state);
    return Py_BuildValue("{s:N,s:N,s:K}", "built", PyBool_FromLong(mu_nvtx_built()), "attached",
                         PyBool_FromLong(mu_nvtx_attached(state->nvtx)), "overflowed",
                         (unsigned long long)mu_nvtx_overflowed(state->nvtx));
}

PyDoc_STRVAR(nvtx_state_doc,
             "nvtx_state($module)\n--\n\n"
             "Whether NVTX was there at build time (built), whether a tool listens in this\n"
             "process (attached), and how many lookups met a full table (overflowed).");

PyDoc_STRVAR(nvtx_range_start_doc,
             "nvtx_range_start($module, name, /)\n--\n\n"
             "Begins an NVTX range of the default domain that any thread may end; returns its\n"
             "number, or None while no tool listens. ValueError for a name with a zero byte.");

static PyObject *nvtx_range_start(PyObject *module, PyObject *name) {
    struct mu_state *state = mu_state_of(module);
    struct mu_py_text text;
    if (mu_py_utf8(name, "name", &text) < 0) {
        return NULL;
    }
    attach_nvtx(state);
    if (strlen(text.bytes) != (size_t)text.length) {
        return PyErr_Format(PyExc_ValueError, "name must have no zero byte, not %.200R", name);
    }
    if (!mu_nvtx_attached(state->nvtx)) {
        Py_RETURN_NONE;
    }
    return PyLong_FromUnsignedLongLong(mu_nvtx_start(state->nvtx, text.bytes, WINDOW_ARGB));
}

PyDoc_STRVAR(nvtx_range_end_doc, "nvtx_range_end($module, number, /)\n--\n\n"
                                 "Ends a range of `nvtx_range_start`.");

static PyObject *nvtx_range_end(PyObject *module, PyObject *number) {
    unsigned long long range = PyLong_AsUnsignedLongLong(number);
    if (range == (unsigned long long)-1 && PyErr_Occurred()) {
        return NULL;
    }
    mu_nvtx_end(mu_state_of(module)->nvtx, range);
    Py_RETURN_NONE;
}

static PyMethodDef functions[] = {
    {"nvtx_range_start", nvtx_range_start, METH_O, nvtx_range_start_doc},
    {"nvtx_range_end", nvtx_range_end, METH_O, nvtx_range_end_doc},
    {"nvtx_state", nvtx_state, METH_NOARGS, nvtx_state_doc},
    {NULL, NULL, 0, NULL},
};

int mu_py_gpu_events_exec(PyObject *module) {
    return PyModule_AddFunctions(module, functions);
}
