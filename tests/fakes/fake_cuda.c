/* A CUDA driver without a GPU: what my_utils calls of libcuda.so.1, on a simulated device.
 *
 * Built as a shared object it stands first on LD_LIBRARY_PATH; a C test includes this file with
 * FAKE(name) defined, and looks functions up with fake_cuda_lookup.
 *
 * The device has one context at a time and streams that work in order. An event or a piece of work
 * (fakeCudaWork) starts a delay after it was enqueued, or when its stream is through with what came
 * before. The device's clock has an offset and a drift against the host's. Threads have no current
 * context until fakeCudaMakeCurrent, and unsafe calls during a capture break it, as with the real
 * one. What would be undefined there (an event used after its context went) is counted as misuse.
 *
 * With FAKE_CUDA_KERNELS defined there are kernels too: those of csrc/engine/gpu_kernels/kernels,
 * run on the processor at the moment they are launched, whatever image was loaded. Device memory is
 * malloc's.
 *
 * Environment: FAKE_CUDA_DELAY_NS, FAKE_CUDA_OFFSET_NS, FAKE_CUDA_DRIFT_PPM,
 * FAKE_CUDA_FAIL="cuEventRecord:3:700,..." (the third call fails with 700; 0: every call),
 * FAKE_CUDA_LOG (a file that gets one line a call).
 */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <fcntl.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#ifdef FAKE_CUDA_KERNELS
#include "tests/gpu_kernels/emulated_kernels.h"
#endif

#ifndef FAKE
#define FAKE(name) name
#define FAKE_API __attribute__((visibility("default")))
#else
#define FAKE_API static __attribute__((unused))
#endif

enum {
    OK = 0,
    INVALID_VALUE = 1,
    NO_CONTEXT = 201,
    INVALID_HANDLE = 400,
    NOT_FOUND = 500,
    NOT_READY = 600,
    DESTROYED = 709,
    CAPTURE_UNSAFE = 900,
    CAPTURE_IMPLICIT = 906,
};

enum { MODE_GLOBAL = 0, MODE_RELAXED = 2, FUNCTIONS_MAX = 48, FAILURES_MAX = 16, STREAMS_MAX = 16 };

struct fake_context {
    uint64_t id;
};

struct fake_event {
    struct fake_event *next; /* all events ever made: misuse is seen after they went, too */
    uint64_t context_id;
    int recorded;
    int destroyed;
    int64_t complete_ns; /* host time */
};

/* The front end of a GPU takes its time for an event. */
enum { EVENT_NS = 600 };

struct fake_stream {
    int64_t busy_until_ns;
    int64_t last_event_ns; /* when the newest event completes */
    int capturing;
};

struct fake_failure {
    char name[64];
    int nth; /* 0: every call */
    int code;
};

enum { LAUNCHES_MAX = 64, PROCESSORS = 2 };

struct fake_launch {
    char name[32];
    unsigned blocks, threads;
    int stream; /* 0: the legacy default one */
};

static struct fake_state {
    pthread_mutex_t lock;
    int configured;
    int log;
    int64_t delay_ns;
    int64_t offset_ns;
    double drift_ppm;
    int manual_clock;
    int64_t clock_ns;
    int64_t clock_step_ns; /* how far a manual clock goes on at each reading */
    struct fake_context context;
    struct fake_stream streams[STREAMS_MAX]; /* the first is the legacy default stream */
    int stream_count;
    struct fake_event *events;
    int live_events;
    int captures_broken;
    int misuse;
    int live_memory; /* pieces of the pool */
    int launches;
    struct fake_launch launched[LAUNCHES_MAX]; /* the last ones, by number modulo LAUNCHES_MAX */
    struct fake_failure failures[FAILURES_MAX];
    int failure_count;
    struct {
        char name[48];
        int calls;
    } functions[FUNCTIONS_MAX];
} fake = {.lock = PTHREAD_MUTEX_INITIALIZER, .log = -1, .context = {1}, .stream_count = 1};

static _Thread_local struct fake_context *fake_current;
static _Thread_local int fake_mode = MODE_GLOBAL;

/* --- the clock, with the lock held --- */

static int64_t host_now(void) {
    if (fake.manual_clock) {
        fake.clock_ns += fake.clock_step_ns;
        return fake.clock_ns;
    }
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

static void host_wait_until(int64_t when) {
    if (fake.manual_clock) {
        fake.clock_ns = fake.clock_ns > when ? fake.clock_ns : when;
        return;
    }
    struct timespec until = {when / 1000000000, when % 1000000000};
    pthread_mutex_unlock(&fake.lock);
    clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &until, NULL);
    pthread_mutex_lock(&fake.lock);
}

static long double gpu_time(int64_t host_ns) {
    return (long double)fake.offset_ns + (long double)host_ns * (1.0L + fake.drift_ppm * 1e-6L);
}

/* --- configuration and failures, with the lock held --- */

/* "name:nth:code,..."; ends at what it cannot read. */
static void add_failures(const char *text) {
    while (text != NULL && fake.failure_count < FAILURES_MAX) {
        const char *colon = strchr(text, ':');
        if (colon == NULL) {
            return;
        }
        struct fake_failure *failure = &fake.failures[fake.failure_count++];
        snprintf(failure->name, sizeof(failure->name), "%.*s", (int)(colon - text), text);
        char *end;
        failure->nth = (int)strtol(colon + 1, &end, 10);
        failure->code = *end == ':' ? (int)strtol(end + 1, &end, 10) : INVALID_VALUE;
        text = *end == ',' ? end + 1 : NULL;
    }
}

static double from_environment(const char *name) {
    const char *text = getenv(name);
    return text == NULL ? 0.0 : strtod(text, NULL);
}

static void configure(void) {
    if (fake.configured) {
        return;
    }
    fake.configured = 1;
    const char *path = getenv("FAKE_CUDA_LOG");
    fake.delay_ns = (int64_t)from_environment("FAKE_CUDA_DELAY_NS");
    fake.offset_ns = (int64_t)from_environment("FAKE_CUDA_OFFSET_NS");
    fake.drift_ppm = from_environment("FAKE_CUDA_DRIFT_PPM");
    fake.log = path == NULL ? -1 : open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
    add_failures(getenv("FAKE_CUDA_FAIL"));
}

static int *calls_of(const char *name) {
    int i = 0;
    while (i < FUNCTIONS_MAX - 1 && fake.functions[i].name[0] != '\0' &&
           strcmp(fake.functions[i].name, name) != 0) {
        i++;
    }
    snprintf(fake.functions[i].name, sizeof(fake.functions[i].name), "%s", name);
    return &fake.functions[i].calls;
}

/* Counts and logs the call; the code that it must fail with, or OK. */
static int enter(const char *name) {
    pthread_mutex_lock(&fake.lock);
    configure();
    int call = ++*calls_of(name);
    if (fake.log >= 0) {
        char line[96];
        int length = snprintf(line, sizeof(line), "%s\n", name);
        if (write(fake.log, line, (size_t)length) < 0) {
            abort();
        }
    }
    for (int i = 0; i < fake.failure_count; i++) {
        const struct fake_failure *failure = &fake.failures[i];
        if (strcmp(failure->name, name) == 0 && (failure->nth == 0 || failure->nth == call)) {
            return failure->code;
        }
    }
    return OK;
}

static int leave(int code) {
    pthread_mutex_unlock(&fake.lock);
    return code;
}

static int any_capture(void) {
    for (int i = 0; i < fake.stream_count; i++) {
        if (fake.streams[i].capturing) {
            return 1;
        }
    }
    return 0;
}

/* A call that a capture forbids, from a thread that did not relax its mode, breaks the capture. */
static int check_unsafe(void) {
    if (fake_mode == MODE_RELAXED || !any_capture()) {
        return OK;
    }
    fake.captures_broken++;
    return CAPTURE_UNSAFE;
}

static struct fake_stream *stream_of(void *stream) {
    return stream == NULL ? &fake.streams[0] : stream;
}

static int check_event(struct fake_event *event) {
    if (event == NULL) {
        return INVALID_HANDLE;
    }
    if (event->destroyed || event->context_id != fake.context.id) {
        fake.misuse++;
        return INVALID_HANDLE;
    }
    return fake_current == NULL ? NO_CONTEXT : OK;
}

static int is_complete(const struct fake_event *event) {
    return event->complete_ns <= host_now();
}

/* --- the driver --- */

FAKE_API int FAKE(cuCtxGetCurrent)(void **context) {
    int code = enter("cuCtxGetCurrent");
    if (code == OK) {
        *context = fake_current;
    }
    return leave(code);
}

FAKE_API int FAKE(cuCtxGetDevice)(int *device) {
    int code = enter("cuCtxGetDevice");
    if (code == OK && fake_current == NULL) {
        code = NO_CONTEXT;
    }
    if (code == OK) {
        *device = 0;
    }
    return leave(code);
}

FAKE_API int FAKE(cuCtxGetId)(void *context, unsigned long long *id) {
    int code = enter("cuCtxGetId");
    if (code == OK) {
        *id = ((struct fake_context *)context)->id;
    }
    return leave(code);
}

/* One place to pop to is enough for callers that push and pop in pairs. */
static _Thread_local struct fake_context *fake_below;

FAKE_API int FAKE(cuCtxPushCurrent_v2)(void *context) {
    int code = enter("cuCtxPushCurrent");
    if (code == OK) {
        fake_below = fake_current;
        fake_current = context;
    }
    return leave(code);
}

FAKE_API int FAKE(cuCtxPopCurrent_v2)(void **context) {
    int code = enter("cuCtxPopCurrent");
    *context = fake_current;
    fake_current = fake_below;
    return leave(code);
}

FAKE_API int FAKE(cuEventCreate)(void **out, unsigned int flags) {
    int code = enter("cuEventCreate");
    if (code == OK) {
        code = flags != 0 ? INVALID_VALUE : fake_current == NULL ? NO_CONTEXT : check_unsafe();
    }
    if (code == OK) {
        struct fake_event *event = calloc(1, sizeof(*event));
        if (event == NULL) {
            abort();
        }
        event->context_id = fake.context.id;
        event->next = fake.events;
        fake.events = event;
        fake.live_events++;
        *out = event;
    }
    return leave(code);
}

FAKE_API int FAKE(cuEventDestroy_v2)(void *handle) {
    struct fake_event *event = handle;
    int code = enter("cuEventDestroy");
    if (code == OK) {
        code = check_event(event);
    }
    if (code == OK) {
        event->destroyed = 1;
        fake.live_events--;
    }
    return leave(code);
}

FAKE_API int FAKE(cuEventRecord)(void *handle, void *stream_handle) {
    struct fake_event *event = handle;
    struct fake_stream *stream = stream_of(stream_handle);
    int code = enter("cuEventRecord");
    if (code == OK) {
        code = check_event(event);
    }
    if (code == OK && stream->capturing) {
        fake.misuse++; /* it would become a node of the graph */
    } else if (code == OK && stream_handle == NULL && any_capture()) {
        code = CAPTURE_IMPLICIT;
    }
    if (code == OK) {
        int64_t start = host_now() + fake.delay_ns;
        start = start > stream->busy_until_ns ? start : stream->busy_until_ns;
        stream->busy_until_ns = start + EVENT_NS;
        stream->last_event_ns = start;
        event->complete_ns = start;
        event->recorded = 1;
    }
    return leave(code);
}

FAKE_API int FAKE(cuEventQuery)(void *handle) {
    struct fake_event *event = handle;
    int code = enter("cuEventQuery");
    if (code == OK) {
        code = check_event(event);
    }
    if (code == OK) {
        code = check_unsafe();
    }
    if (code == OK && event->recorded && !is_complete(event)) {
        code = NOT_READY;
    }
    return leave(code);
}

FAKE_API int FAKE(cuEventSynchronize)(void *handle) {
    struct fake_event *event = handle;
    int code = enter("cuEventSynchronize");
    if (code == OK) {
        code = check_event(event);
    }
    if (code == OK) {
        code = check_unsafe();
    }
    if (code == OK && event->recorded) {
        host_wait_until(event->complete_ns);
    }
    return leave(code);
}

FAKE_API int FAKE(cuEventElapsedTime)(float *milliseconds, void *from_handle, void *to_handle) {
    struct fake_event *from = from_handle;
    struct fake_event *to = to_handle;
    int code = enter("cuEventElapsedTime");
    if (code == OK) {
        code = check_event(from);
    }
    if (code == OK) {
        code = check_event(to);
    }
    if (code == OK) {
        code = check_unsafe();
    }
    if (code == OK && (!from->recorded || !to->recorded)) {
        code = INVALID_HANDLE;
    }
    if (code == OK && !(is_complete(from) && is_complete(to))) {
        code = NOT_READY;
    }
    if (code == OK) {
        *milliseconds = (float)((gpu_time(to->complete_ns) - gpu_time(from->complete_ns)) / 1e6L);
    }
    return leave(code);
}

FAKE_API int FAKE(cuStreamIsCapturing)(void *stream, int *status) {
    int code = enter("cuStreamIsCapturing");
    if (code == OK && stream == NULL && any_capture()) {
        code = CAPTURE_IMPLICIT;
    }
    if (code == OK) {
        *status = stream_of(stream)->capturing;
    }
    return leave(code);
}

FAKE_API int FAKE(cuStreamGetId)(void *stream, unsigned long long *id) {
    int code = enter("cuStreamGetId");
    if (code == OK) {
        *id = (unsigned long long)(stream_of(stream) - fake.streams) + 1;
    }
    return leave(code);
}

FAKE_API int FAKE(cuThreadExchangeStreamCaptureMode)(int *mode) {
    int code = enter("cuThreadExchangeStreamCaptureMode");
    if (code == OK) {
        int before = fake_mode;
        fake_mode = *mode;
        *mode = before;
    }
    return leave(code);
}

FAKE_API int FAKE(cuGetErrorName)(int code, const char **name) {
    *name = code == 700 ? "CUDA_ERROR_ILLEGAL_ADDRESS" : "CUDA_ERROR_UNKNOWN";
    return leave(enter("cuGetErrorName"));
}

/* --- kernels and memory --- */

FAKE_API int FAKE(cuDeviceGet)(int *device, int ordinal) {
    int code = enter("cuDeviceGet");
    *device = ordinal;
    return leave(code != OK ? code : ordinal == 0 ? OK : 101);
}

/* Compute capability 9.0. */
FAKE_API int FAKE(cuDeviceGetAttribute)(int *value, int attribute, int device) {
    int code = enter("cuDeviceGetAttribute");
    (void)device;
    *value = attribute == 16 ? PROCESSORS : attribute == 75 ? 9 : 0;
    return leave(code);
}

FAKE_API int FAKE(cuDevicePrimaryCtxRetain)(void **context, int device) {
    int code = enter("cuDevicePrimaryCtxRetain");
    (void)device;
    *context = &fake.context;
    return leave(code);
}

FAKE_API int FAKE(cuDevicePrimaryCtxRelease_v2)(int device) {
    (void)device;
    return leave(enter("cuDevicePrimaryCtxRelease"));
}

static int check_context(int code) {
    return code == OK && fake_current == NULL ? NO_CONTEXT : code;
}

FAKE_API int FAKE(cuCtxSynchronize)(void) {
    return leave(check_context(enter("cuCtxSynchronize")));
}

FAKE_API int FAKE(cuProfilerStart)(void) {
    return leave(check_context(enter("cuProfilerStart")));
}

FAKE_API int FAKE(cuProfilerStop)(void) {
    return leave(check_context(enter("cuProfilerStop")));
}

FAKE_API int FAKE(cuModuleLoadData)(void **module, const void *image) {
    int code = check_context(enter("cuModuleLoadData"));
    if (code == OK) {
        code = image == NULL || *(const char *)image == '\0' ? INVALID_VALUE : check_unsafe();
    }
    *module = &fake;
    return leave(code);
}

FAKE_API int FAKE(cuModuleGetFunction)(void **function, void *module, const char *name) {
    int code = check_context(enter("cuModuleGetFunction"));
    (void)module;
    *function = NULL;
#ifdef FAKE_CUDA_KERNELS
    *function = (void *)find_emulated_kernel(name);
#else
    (void)name;
#endif
    return leave(code != OK ? code : *function == NULL ? NOT_FOUND : OK);
}

#ifdef FAKE_CUDA_KERNELS
static void note_launch(const char *name, unsigned blocks, unsigned threads, void *stream) {
    struct fake_launch *launch = &fake.launched[fake.launches++ % LAUNCHES_MAX];
    launch->blocks = blocks;
    launch->threads = threads;
    launch->stream = (int)(stream_of(stream) - fake.streams);
    snprintf(launch->name, sizeof(launch->name), "%s", name);
}

FAKE_API int FAKE(cuLaunchKernel)(void *function, unsigned grid_x, unsigned grid_y, unsigned grid_z,
                                  unsigned block_x, unsigned block_y, unsigned block_z,
                                  unsigned shared, void *stream, void **arguments, void **extra) {
    const struct emulated_kernel *kernel = function;
    int code = check_context(enter("cuLaunchKernel"));
    if (grid_x == 0 || grid_y * grid_z * block_y * block_z != 1 || block_x == 0 ||
        block_x > GPU_BLOCK_MAX || shared != 0 || extra != NULL) {
        code = code == OK ? INVALID_VALUE : code;
    }
    if (code == OK) {
        note_launch(kernel->name, grid_x, block_x, stream);
        gpu_launch(kernel->run, grid_x, block_x, arguments);
    }
    return leave(code);
}
#endif

FAKE_API int FAKE(cuMemPoolCreate)(void **pool, const void *properties) {
    int code = enter("cuMemPoolCreate");
    (void)properties;
    *pool = &fake;
    return leave(code == OK ? check_unsafe() : code);
}

FAKE_API int FAKE(cuMemPoolSetAttribute)(void *pool, int attribute, void *value) {
    int code = enter("cuMemPoolSetAttribute");
    (void)pool;
    (void)value;
    return leave(code != OK ? code : attribute == 4 ? OK : INVALID_VALUE);
}

FAKE_API int FAKE(cuMemAllocFromPoolAsync)(uint64_t *memory, size_t bytes, void *pool,
                                           void *stream) {
    int code = check_context(enter("cuMemAllocFromPoolAsync"));
    (void)pool;
    (void)stream;
    *memory = 0;
    if (code == OK) {
        void *made = malloc(bytes);
        *memory = (uint64_t)(uintptr_t)made;
        code = made == NULL ? 2 : OK;
        fake.live_memory += made != NULL;
    }
    return leave(code);
}

FAKE_API int FAKE(cuMemFreeAsync)(uint64_t memory, void *stream) {
    int code = check_context(enter("cuMemFreeAsync"));
    (void)stream;
    free((void *)(uintptr_t)memory); /* also when it fails: nobody can use it any more */
    fake.live_memory--;
    return leave(code);
}

FAKE_API int FAKE(cuMemsetD32Async)(uint64_t memory, unsigned value, size_t words, void *stream) {
    int code = check_context(enter("cuMemsetD32Async"));
    (void)stream;
    for (size_t i = 0; code == OK && i < words; i++) {
        ((unsigned *)(uintptr_t)memory)[i] = value;
    }
    return leave(code);
}

FAKE_API int FAKE(cuMemcpyDtoHAsync_v2)(void *host, uint64_t memory, size_t bytes, void *stream) {
    int code = check_context(enter("cuMemcpyDtoHAsync"));
    if (code == OK && stream_of(stream)->capturing) {
        fake.misuse++; /* it would become a node of the graph */
    }
    if (code == OK) {
        memcpy(host, (const void *)(uintptr_t)memory, bytes);
    }
    return leave(code);
}

FAKE_API int FAKE(cuStreamSynchronize)(void *stream) {
    int code = check_context(enter("cuStreamSynchronize"));
    if (code == OK) {
        code = stream_of(stream)->capturing ? CAPTURE_UNSAFE : check_unsafe();
        fake.captures_broken += code != OK;
    }
    return leave(code);
}

/* --- what tests turn --- */

FAKE_API void FAKE(fakeCudaMakeCurrent)(int current) {
    fake_current = current ? &fake.context : NULL;
}

/* A stream, made once and kept: number 1 to 15. */
FAKE_API void *FAKE(fakeCudaStream)(int number) {
    pthread_mutex_lock(&fake.lock);
    if (number >= fake.stream_count) {
        fake.stream_count = number + 1;
    }
    leave(OK);
    return &fake.streams[number];
}

FAKE_API void FAKE(fakeCudaWork)(void *stream_handle, int64_t ns) {
    struct fake_stream *stream = stream_of(stream_handle);
    pthread_mutex_lock(&fake.lock);
    configure();
    int64_t start = host_now() + fake.delay_ns;
    start = start > stream->busy_until_ns ? start : stream->busy_until_ns;
    stream->busy_until_ns = start + ns;
    leave(OK);
}

/* The true time of the event that was recorded last on the stream, on the host's clock. */
FAKE_API int64_t FAKE(fakeCudaLastEvent)(void *stream) {
    pthread_mutex_lock(&fake.lock);
    int64_t complete = stream_of(stream)->last_event_ns;
    leave(OK);
    return complete;
}

FAKE_API void FAKE(fakeCudaCapture)(void *stream, int on) {
    pthread_mutex_lock(&fake.lock);
    stream_of(stream)->capturing = on;
    leave(OK);
}

/* The context goes, its events with it, and another stands at the same address. */
FAKE_API void FAKE(fakeCudaReset)(void) {
    pthread_mutex_lock(&fake.lock);
    fake.context.id++;
    fake.live_events = 0;
    leave(OK);
}

FAKE_API void FAKE(fakeCudaFail)(const char *failures) {
    pthread_mutex_lock(&fake.lock);
    configure();
    fake.failure_count = 0;
    add_failures(failures);
    leave(OK);
}

FAKE_API void FAKE(fakeCudaDevice)(int64_t delay_ns, int64_t offset_ns, double drift_ppm) {
    pthread_mutex_lock(&fake.lock);
    configure();
    fake.delay_ns = delay_ns;
    fake.offset_ns = offset_ns;
    fake.drift_ppm = drift_ppm;
    leave(OK);
}

/* Stops the device's clock, or sets the one that stands. */
FAKE_API void FAKE(fakeCudaClock)(int64_t ns) {
    pthread_mutex_lock(&fake.lock);
    fake.manual_clock = 1;
    fake.clock_ns = ns;
    leave(OK);
}

FAKE_API int64_t FAKE(fakeCudaNow)(void) {
    pthread_mutex_lock(&fake.lock);
    int64_t now = host_now();
    leave(OK);
    return now;
}

FAKE_API int FAKE(fakeCudaCalls)(const char *name) {
    pthread_mutex_lock(&fake.lock);
    int calls = *calls_of(name);
    leave(OK);
    return calls;
}

FAKE_API int FAKE(fakeCudaMisuse)(void) {
    pthread_mutex_lock(&fake.lock);
    int misuse = fake.misuse + fake.captures_broken;
    leave(OK);
    return misuse;
}

FAKE_API int FAKE(fakeCudaLiveEvents)(void) {
    pthread_mutex_lock(&fake.lock);
    int live = fake.live_events;
    leave(OK);
    return live;
}

FAKE_API int FAKE(fakeCudaLiveMemory)(void) {
    pthread_mutex_lock(&fake.lock);
    int live = fake.live_memory;
    leave(OK);
    return live;
}

FAKE_API int FAKE(fakeCudaLaunches)(void) {
    pthread_mutex_lock(&fake.lock);
    int launches = fake.launches;
    leave(OK);
    return launches;
}
