#include "host/gpu_health.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/thread.h"

enum {
    STACK_BYTES = 1024 * 1024, /* the library runs on it */
    UUID_BYTES = 96,
    /* nvml.h */
    NVML_SUCCESS = 0,
    NVML_CLOCK_SM = 1,
    NVML_TEMPERATURE_GPU = 0,
    NVML_UNCORRECTED = 1,
    NVML_VOLATILE = 0,
    NVML_EVENT_XID = 8,
    EVENTS_MAX = 64, /* at a reading */
};

static const int64_t period_ns = 1000000000;

typedef struct nvml_device *nvml_device;
typedef struct nvml_event_set *nvml_event_set;

struct nvml_event {
    nvml_device device;
    unsigned long long type, data; /* of an Xid: its number */
    unsigned gpu_instance, compute_instance;
};

/* The functions of NVML that are called; NULL: the library has it not. */
struct nvml {
    int (*init)(unsigned flags);
    int (*by_uuid)(const char *uuid, nvml_device *device);
    int (*clock)(nvml_device device, int clock, unsigned *mhz);
    int (*reasons)(nvml_device device, unsigned long long *bits);
    int (*power)(nvml_device device, unsigned *milliwatts);
    int (*temperature)(nvml_device device, int sensor, unsigned *celsius);
    int (*pcie_width)(nvml_device device, unsigned *lanes);
    int (*ecc)(nvml_device device, int kind, int counter, unsigned long long *errors);
    int (*set_create)(nvml_event_set *set);
    int (*set_register)(nvml_device device, unsigned long long types, nvml_event_set set);
    int (*set_wait)(nvml_event_set set, struct nvml_event *event, unsigned timeout_ms);
};

/* Of the thread alone. */
struct xids {
    nvml_event_set set; /* for as long as the process lives; NULL: not measured */
    uint64_t count, last;
};

struct mu_gpu_health {
    pid_t owner; /* the process that has the thread */
    char uuid[UUID_BYTES];
    pthread_mutex_t lock; /* of all below */
    pthread_cond_t wake;
    bool stop, is_let_go, has_ended; /* the last of the two to let go frees it */
    struct mu_gpu_reading reading;
};

/* --- the library -------------------------------------------------------------------------- */

static void look_up(void *library, const char *name, void *function) {
    void *address = dlsym(library, name);
    if (address != NULL) {
        memcpy(function, &address, sizeof(address)); /* POSIX lets a data pointer hold a function */
    }
}

static bool open_nvml(struct nvml *nvml) {
    void *library = dlopen("libnvidia-ml.so.1", RTLD_NOW | RTLD_LOCAL);
    memset(nvml, 0, sizeof(*nvml));
    if (library == NULL) {
        return false;
    }
    look_up(library, "nvmlInitWithFlags", &nvml->init);
    look_up(library, "nvmlDeviceGetHandleByUUID", &nvml->by_uuid);
    look_up(library, "nvmlDeviceGetClockInfo", &nvml->clock);
    look_up(library, "nvmlDeviceGetCurrentClocksThrottleReasons", &nvml->reasons);
    look_up(library, "nvmlDeviceGetCurrentClocksEventReasons", &nvml->reasons); /* its new name */
    look_up(library, "nvmlDeviceGetPowerUsage", &nvml->power);
    look_up(library, "nvmlDeviceGetTemperature", &nvml->temperature);
    look_up(library, "nvmlDeviceGetCurrPcieLinkWidth", &nvml->pcie_width);
    look_up(library, "nvmlDeviceGetTotalEccErrors", &nvml->ecc);
    look_up(library, "nvmlEventSetCreate", &nvml->set_create);
    look_up(library, "nvmlDeviceRegisterEvents", &nvml->set_register);
    look_up(library, "nvmlEventSetWait_v2", &nvml->set_wait);
    return nvml->init != NULL && nvml->by_uuid != NULL && nvml->init(0) == NVML_SUCCESS;
}

static void put(struct mu_gpu_reading *out, enum mu_gpu_figure figure, bool known, uint64_t value) {
    out->known[figure] = known;
    out->figures[figure] = known ? (int64_t)value : 0;
}

static void ask(const struct nvml *nvml, nvml_device device, struct mu_gpu_reading *out) {
    unsigned small = 0;
    unsigned long long large = 0;
    bool known = nvml->clock != NULL && nvml->clock(device, NVML_CLOCK_SM, &small) == NVML_SUCCESS;
    put(out, MU_GPU_SM_MHZ, known, small);
    known = nvml->reasons != NULL && nvml->reasons(device, &large) == NVML_SUCCESS;
    put(out, MU_GPU_REASONS, known, large);
    known = nvml->power != NULL && nvml->power(device, &small) == NVML_SUCCESS;
    put(out, MU_GPU_MILLIWATTS, known, small);
    known = nvml->temperature != NULL &&
            nvml->temperature(device, NVML_TEMPERATURE_GPU, &small) == NVML_SUCCESS;
    put(out, MU_GPU_CELSIUS, known, small);
    known = nvml->pcie_width != NULL && nvml->pcie_width(device, &small) == NVML_SUCCESS;
    put(out, MU_GPU_PCIE_WIDTH, known, small);
    known = nvml->ecc != NULL &&
            nvml->ecc(device, NVML_UNCORRECTED, NVML_VOLATILE, &large) == NVML_SUCCESS;
    put(out, MU_GPU_ECC_ERRORS, known, large);
}

/* --- critical errors ---------------------------------------------------------------------- */

static void watch_xids(const struct nvml *nvml, nvml_device device, struct xids *xids) {
    bool can = nvml->set_create != NULL && nvml->set_register != NULL && nvml->set_wait != NULL;
    *xids = (struct xids){.set = NULL};
    if (!can || nvml->set_create(&xids->set) != NVML_SUCCESS ||
        nvml->set_register(device, NVML_EVENT_XID, xids->set) != NVML_SUCCESS) {
        xids->set = NULL;
    }
}

/* What came since the last call; waits for nothing. */
static void ask_xids(const struct nvml *nvml, struct xids *xids, struct mu_gpu_reading *out) {
    struct nvml_event event;
    for (int i = 0; xids->set != NULL && i < EVENTS_MAX; i++) {
        memset(&event, 0, sizeof(event));
        if (nvml->set_wait(xids->set, &event, 0) != NVML_SUCCESS) {
            break;
        }
        bool is_xid = event.type == NVML_EVENT_XID;
        xids->count += is_xid;
        xids->last = is_xid ? event.data : xids->last;
    }
    put(out, MU_GPU_XIDS, xids->set != NULL, xids->count);
    put(out, MU_GPU_LAST_XID, xids->count > 0, xids->last);
}

/* --- the thread --------------------------------------------------------------------------- */

static void destroy(struct mu_gpu_health *health) {
    pthread_mutex_destroy(&health->lock);
    pthread_cond_destroy(&health->wake);
    free(health);
}

static void watch(struct mu_gpu_health *health) {
    struct nvml nvml;
    nvml_device device;
    struct mu_gpu_reading reading = {0};
    struct xids xids;
    if (!open_nvml(&nvml) || nvml.by_uuid(health->uuid, &device) != NVML_SUCCESS) {
        return;
    }
    watch_xids(&nvml, device, &xids);
    do {
        ask(&nvml, device, &reading);
        ask_xids(&nvml, &xids, &reading);
        reading.number++;
        pthread_mutex_lock(&health->lock);
        health->reading = reading;
        pthread_mutex_unlock(&health->lock);
    } while (mu_wait_until(&health->lock, &health->wake, &health->stop,
                           mu_clock_monotonic_ns() + period_ns));
}

static void *health_main(void *argument) {
    struct mu_gpu_health *health = argument;
    watch(health);
    pthread_mutex_lock(&health->lock);
    bool is_last = health->is_let_go;
    health->has_ended = true;
    pthread_mutex_unlock(&health->lock);
    if (is_last) {
        destroy(health);
    }
    return NULL;
}

/* --- the watch ---------------------------------------------------------------------------- */

struct mu_gpu_health *mu_gpu_health_start(const char *uuid) {
    struct mu_gpu_health *health = calloc(1, sizeof(*health));
    if (health == NULL) {
        return NULL;
    }
    health->owner = getpid();
    snprintf(health->uuid, sizeof(health->uuid), "%s", uuid);
    pthread_mutex_init(&health->lock, NULL);
    mu_cond_init(&health->wake);
    if (!mu_thread_start(NULL, STACK_BYTES, health_main, health)) {
        destroy(health);
        return NULL;
    }
    return health;
}

void mu_gpu_health_stop(struct mu_gpu_health *health) {
    if (health == NULL || health->owner != getpid()) {
        free(health); /* NULL, or the parent's, whose lock may be held by a thread of the parent */
        return;
    }
    pthread_mutex_lock(&health->lock);
    bool is_last = health->has_ended;
    health->stop = health->is_let_go = true;
    pthread_cond_signal(&health->wake);
    pthread_mutex_unlock(&health->lock);
    if (is_last) {
        destroy(health);
    }
}

void mu_gpu_health_read(struct mu_gpu_health *health, struct mu_gpu_reading *out) {
    pthread_mutex_lock(&health->lock);
    *out = health->reading;
    pthread_mutex_unlock(&health->lock);
}
