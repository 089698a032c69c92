#include "base/process.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"

uint64_t mu_process_start(int32_t pid) {
    char path[64], text[1024];
    snprintf(path, sizeof(path), "/proc/%d/stat", (int)pid);
    FILE *file = fopen(path, "re");
    if (file == NULL) {
        return 0;
    }
    size_t got = fread(text, 1, sizeof(text) - 1, file);
    fclose(file);
    text[got] = '\0';
    /* The command name, in brackets, may hold anything; field 22 is the 20th after it. */
    const char *at = strrchr(text, ')');
    for (int field = 2; at != NULL && field < 22; field++) {
        at = strchr(at + 1, ' ');
    }
    return at == NULL ? 0 : strtoull(at, NULL, 10);
}

int64_t mu_process_began_ns(uint64_t start) {
    if (start == 0) {
        return 0;
    }
    uint64_t ticks_a_second = (uint64_t)sysconf(_SC_CLK_TCK);
    return mu_clock_offset(CLOCK_REALTIME, CLOCK_BOOTTIME) +
           (int64_t)(start * (1000000000 / ticks_a_second));
}

bool mu_process_lives(int32_t pid, uint64_t start) {
    if (pid <= 0 || (kill(pid, 0) != 0 && errno == ESRCH)) {
        return false;
    }
    uint64_t now = mu_process_start(pid);
    return now == 0 || start == 0 || now == start;
}

void mu_boot_id(char out[MU_BOOT_ID_BYTES]) {
    out[0] = '\0';
    FILE *file = fopen("/proc/sys/kernel/random/boot_id", "re");
    if (file != NULL) {
        if (fgets(out, MU_BOOT_ID_BYTES, file) == NULL) {
            out[0] = '\0';
        }
        fclose(file);
    }
    out[strcspn(out, "\n")] = '\0';
}
