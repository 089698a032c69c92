#include "profile_files/claim.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/own_files.h"
#include "base/process.h"

enum { CLAIM_BYTES = 512, TRIES = 16 };

static void claim_path(const char *csv_path, char path[MU_PATH_BYTES + 8]) {
    snprintf(path, MU_PATH_BYTES + 8, "%s.claim", csv_path);
}

static void own_machine(char *text, size_t size) {
    char host[256] = "", boot[MU_BOOT_ID_BYTES];
    if (gethostname(host, sizeof(host) - 1) != 0) {
        host[0] = '\0';
    }
    mu_boot_id(boot);
    snprintf(text, size, "%s %s", host, boot);
}

static void own_claim(char text[CLAIM_BYTES]) {
    char machine[320];
    own_machine(machine, sizeof(machine));
    snprintf(text, CLAIM_BYTES, "%s %d %" PRIu64 "\n", machine, (int)getpid(),
             mu_process_start((int32_t)getpid()));
}

/* Empty when there is none. */
static void read_claim(const char *path, char text[CLAIM_BYTES]) {
    int fd = mu_open_regular(path, O_RDONLY, 0);
    ssize_t got = fd < 0 ? 0 : read(fd, text, CLAIM_BYTES - 1);
    text[got < 0 ? 0 : got] = '\0';
    if (fd >= 0) {
        close(fd);
    }
}

/* A claim without a line end is being written, or its writer was killed; nobody can tell. */
static bool is_of_a_dead_process(const char *text) {
    char machine[320];
    int pid = 0;
    uint64_t start = 0;
    own_machine(machine, sizeof(machine));
    size_t length = strlen(machine);
    return strncmp(text, machine, length) == 0 && strchr(text, '\n') != NULL &&
           sscanf(text + length, " %d %" SCNu64, &pid, &start) == 2 &&
           !mu_process_lives(pid, start);
}

/* Of several processes that saw it, one renames it; what it renames is looked at again. */
static void remove_dead(const char *path) {
    char aside[MU_PATH_BYTES + 32], text[CLAIM_BYTES];
    snprintf(aside, sizeof(aside), "%s.%d", path, (int)getpid());
    if (rename(path, aside) != 0) {
        return;
    }
    read_claim(aside, text);
    if (!is_of_a_dead_process(text) && link(aside, path) != 0) {
        return; /* a third process claims it by now; the file stays for users to see */
    }
    unlink(aside);
}

MU_MUST_CHECK static int make_claim(const char *path, const char *text, bool *made,
                                    struct mu_error *err) {
    int fd = open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0644);
    *made = fd >= 0;
    if (fd < 0) {
        return errno == EEXIST ? MU_OK : mu_error_sys(err, "create", path);
    }
    size_t length = strlen(text);
    int code =
        write(fd, text, length) == (ssize_t)length ? MU_OK : mu_error_sys(err, "write", path);
    close(fd);
    if (code != MU_OK) {
        unlink(path);
    }
    return code;
}

int mu_claim_take(const char *csv_path, bool *taken, struct mu_error *err) {
    char path[MU_PATH_BYTES + 8], own[CLAIM_BYTES], found[CLAIM_BYTES];
    claim_path(csv_path, path);
    own_claim(own);
    *taken = false;
    for (int i = 0; i < TRIES; i++) {
        int code = make_claim(path, own, taken, err);
        if (code != MU_OK || *taken) {
            return code;
        }
        read_claim(path, found);
        *taken = strcmp(found, own) == 0;
        if (*taken || !is_of_a_dead_process(found)) {
            return MU_OK;
        }
        remove_dead(path);
    }
    return MU_OK;
}

void mu_claim_release(const char *csv_path) {
    char path[MU_PATH_BYTES + 8], own[CLAIM_BYTES], found[CLAIM_BYTES];
    claim_path(csv_path, path);
    own_claim(own);
    read_claim(path, found);
    if (strcmp(found, own) == 0) {
        unlink(path);
    }
}
