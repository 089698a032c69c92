/* NVML without a GPU: what my_utils reads of libnvidia-ml.so.1, with known figures.
 *
 * Device i has: GPU use 40+i %, memory use 20+i %, (1+i) GiB used, 100.5+i W, 50+i degrees, clocks
 * of 1500+i and 2600+i MHz, PCIe (1+i) * 1000 KB/s in and (1+i) * 2000 KB/s out, and the UUID
 * GPU-0000000<i>-fake. Its link has 16 >> i lanes, it had i uncorrected errors, and its clock is
 * held down for the reasons FAKE_NVML_REASONS (0). Its driver reports the critical errors
 * FAKE_NVML_XIDS
 * ("79,31"), one a call. Reading PCIe takes 20 ms, as with the real one.
 *
 * Environment: FAKE_NVML_DEVICES (2), FAKE_NVML_FAIL="nvmlDeviceGetPowerUsage:3:999,..." (from the
 * third call on it returns 999; 0: every call), FAKE_NVML_HANG (a function that never returns),
 * FAKE_NVML_LOG (a file that gets one line a call).
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define API __attribute__((visibility("default")))

enum {
    OK = 0,
    UNINITIALIZED = 1,
    INVALID_ARGUMENT = 2,
    NOT_FOUND = 6,
    TIMEOUT = 10,
    FUNCTIONS_MAX = 32
};

typedef const struct device *device_t;

struct device {
    unsigned index;
};

struct utilization {
    unsigned gpu, memory;
};

struct event {
    device_t device;
    unsigned long long type, data;
    unsigned gpu_instance, compute_instance;
};

struct memory {
    unsigned long long total, free, used;
};

static const struct device devices[16] = {{0}, {1}, {2},  {3},  {4},  {5},  {6},  {7},
                                          {8}, {9}, {10}, {11}, {12}, {13}, {14}, {15}};
static int initialized;
static struct {
    const char *name;
    int calls;
} counts[FUNCTIONS_MAX];

static unsigned device_count(void) {
    const char *text = getenv("FAKE_NVML_DEVICES");
    return text == NULL ? 2 : (unsigned)atoi(text);
}

static int count_call(const char *name) {
    for (int i = 0; i < FUNCTIONS_MAX; i++) {
        if (counts[i].name == NULL) {
            counts[i].name = name;
        }
        if (strcmp(counts[i].name, name) == 0) {
            return ++counts[i].calls;
        }
    }
    abort();
}

static void log_call(const char *name) {
    const char *path = getenv("FAKE_NVML_LOG");
    int fd = path == NULL ? -1 : open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
    if (fd >= 0) {
        dprintf(fd, "%s\n", name);
        close(fd);
    }
}

static int injected(const char *name, int call) {
    const char *plan = getenv("FAKE_NVML_FAIL");
    size_t length = strlen(name);
    while (plan != NULL) {
        int nth, code;
        if (strncmp(plan, name, length) == 0 && plan[length] == ':' &&
            sscanf(plan + length, ":%d:%d", &nth, &code) == 2 && call >= nth) {
            return code;
        }
        plan = strchr(plan, ',');
        plan = plan == NULL ? NULL : plan + 1;
    }
    return OK;
}

/* Every function begins with it. */
static int enter(const char *name) {
    log_call(name);
    const char *hanging = getenv("FAKE_NVML_HANG");
    while (hanging != NULL && strcmp(hanging, name) == 0) {
        pause();
    }
    return injected(name, count_call(name));
}

static int enter_device(const char *name, device_t device) {
    int code = enter(name);
    if (code != OK) {
        return code;
    }
    if (!initialized) {
        return UNINITIALIZED;
    }
    return device < devices || device >= devices + device_count() ? INVALID_ARGUMENT : OK;
}

API int nvmlInitWithFlags(unsigned flags) {
    (void)flags;
    int code = enter("nvmlInit");
    initialized += code == OK;
    return code;
}

API int nvmlShutdown(void) {
    int code = enter("nvmlShutdown");
    if (code == OK && initialized == 0) {
        return UNINITIALIZED;
    }
    initialized -= code == OK;
    return code;
}

API const char *nvmlErrorString(int code) {
    (void)code;
    return "an error"; /* nvidia-ml-py has its own texts */
}

API int nvmlDeviceGetCount_v2(unsigned *count) {
    int code = enter("nvmlDeviceGetCount");
    *count = device_count();
    return code;
}

API int nvmlDeviceGetHandleByIndex_v2(unsigned index, device_t *device) {
    int code = enter("nvmlDeviceGetHandleByIndex");
    if (code == OK && index >= device_count()) {
        return INVALID_ARGUMENT;
    }
    *device = &devices[index];
    return code;
}

API int nvmlDeviceGetUUID(device_t device, char *text, unsigned size) {
    int code = enter_device("nvmlDeviceGetUUID", device);
    if (code == OK) {
        snprintf(text, size, "GPU-%08u-fake", device->index);
    }
    return code;
}

API int nvmlDeviceGetHandleByUUID(const char *uuid, device_t *device) {
    int code = enter("nvmlDeviceGetHandleByUUID");
    if (code == OK && strcmp(uuid, "MIG-1") == 0) {
        *device = &devices[1];
        return OK;
    }
    for (unsigned i = 0; code == OK && i < device_count(); i++) {
        char own[32];
        snprintf(own, sizeof(own), "GPU-%08u-fake", i);
        if (strcmp(uuid, own) == 0) {
            *device = &devices[i];
            return OK;
        }
    }
    return code == OK ? NOT_FOUND : code;
}

API int nvmlDeviceGetUtilizationRates(device_t device, struct utilization *rates) {
    int code = enter_device("nvmlDeviceGetUtilizationRates", device);
    if (code == OK) {
        *rates = (struct utilization){40 + device->index, 20 + device->index};
    }
    return code;
}

API int nvmlDeviceGetMemoryInfo(device_t device, struct memory *memory) {
    int code = enter_device("nvmlDeviceGetMemoryInfo", device);
    if (code == OK) {
        unsigned long long used = (1ULL + device->index) << 30;
        *memory = (struct memory){80ULL << 30, (80ULL << 30) - used, used};
    }
    return code;
}

API int nvmlDeviceGetPowerUsage(device_t device, unsigned *milliwatts) {
    int code = enter_device("nvmlDeviceGetPowerUsage", device);
    if (code == OK) {
        *milliwatts = 100500 + 1000 * device->index;
    }
    return code;
}

API int nvmlDeviceGetTemperature(device_t device, unsigned sensor, unsigned *degrees) {
    int code = enter_device("nvmlDeviceGetTemperature", device);
    if (code == OK && sensor != 0) {
        return INVALID_ARGUMENT;
    }
    if (code == OK) {
        *degrees = 50 + device->index;
    }
    return code;
}

API int nvmlDeviceGetClockInfo(device_t device, unsigned clock, unsigned *mhz) {
    int code = enter_device("nvmlDeviceGetClockInfo", device);
    if (code == OK && clock != 1 && clock != 2) { /* NVML_CLOCK_SM, NVML_CLOCK_MEM */
        return INVALID_ARGUMENT;
    }
    if (code == OK) {
        *mhz = (clock == 1 ? 1500 : 2600) + device->index;
    }
    return code;
}

API int nvmlDeviceGetPcieThroughput(device_t device, unsigned counter, unsigned *kilobytes) {
    int code = enter_device("nvmlDeviceGetPcieThroughput", device);
    if (code == OK) {
        nanosleep(&(struct timespec){.tv_nsec = 20 * 1000 * 1000}, NULL);
        /* NVML_PCIE_UTIL_TX_BYTES is 0, RX is 1. */
        *kilobytes = (counter == 0 ? 2000 : 1000) * (1 + device->index);
    }
    return code;
}

API int nvmlDeviceGetCurrentClocksEventReasons(device_t device, unsigned long long *reasons) {
    int code = enter_device("nvmlDeviceGetCurrentClocksEventReasons", device);
    const char *text = getenv("FAKE_NVML_REASONS");
    if (code == OK) {
        *reasons = text == NULL ? 0 : strtoull(text, NULL, 0);
    }
    return code;
}

API int nvmlDeviceGetCurrPcieLinkWidth(device_t device, unsigned *lanes) {
    int code = enter_device("nvmlDeviceGetCurrPcieLinkWidth", device);
    if (code == OK) {
        *lanes = 16 >> device->index;
    }
    return code;
}

API int nvmlDeviceGetTotalEccErrors(device_t device, int kind, int counter,
                                    unsigned long long *errors) {
    int code = enter_device("nvmlDeviceGetTotalEccErrors", device);
    if (code == OK && (kind != 1 || counter != 0)) { /* uncorrected, since the driver's start */
        return INVALID_ARGUMENT;
    }
    if (code == OK) {
        *errors = device->index;
    }
    return code;
}

API int nvmlEventSetCreate(void **set) {
    int code = enter("nvmlEventSetCreate");
    static int events;
    *set = &events;
    return code;
}

API int nvmlDeviceRegisterEvents(device_t device, unsigned long long types, void *set) {
    int code = enter_device("nvmlDeviceRegisterEvents", device);
    return code == OK && (types != 8 || set == NULL) ? INVALID_ARGUMENT : code;
}

API int nvmlEventSetWait_v2(int *set, struct event *event, unsigned timeout_ms) {
    int code = enter("nvmlEventSetWait");
    const char *text = getenv("FAKE_NVML_XIDS");
    if (code != OK) {
        return code;
    }
    for (int i = 0; text != NULL && i < *set; i++) {
        text = strchr(text, ',');
        text = text == NULL ? NULL : text + 1;
    }
    if (text == NULL || timeout_ms > 0) {
        return TIMEOUT;
    }
    ++*set;
    *event = (struct event){NULL, 8, strtoull(text, NULL, 10), 0, 0};
    return OK;
}
