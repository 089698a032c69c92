#include "profile_files/placement.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

#include "base/own_files.h"
#include "base/process.h"

/* Magic numbers of statfs(2); not every libc's headers have all of them. */
static const uint32_t local_file_systems[] = {
    0x0000EF53, /* ext2, ext3, ext4 */
    0x58465342, /* xfs */
    0x9123683E, /* btrfs */
    0x01021994, /* tmpfs */
    0x858458F6, /* ramfs */
    0x794C7630, /* overlayfs */
    0xF2F52010, /* f2fs */
    0x2FC12FC1, /* zfs */
    0xCA451A4E, /* bcachefs */
};

bool mu_placement_is_local(const char *directory) {
    struct statfs status;
    if (statfs(directory, &status) != 0) {
        return false;
    }
    for (size_t i = 0; i < sizeof(local_file_systems) / sizeof(local_file_systems[0]); i++) {
        if ((uint32_t)status.f_type == local_file_systems[i]) {
            return true;
        }
    }
    return false;
}

enum { NAMES_MAX = 1000 }; /* so many of them another user may have taken */

/* Whether it is a directory of ours, no link to one, to which no other user can write. */
static bool is_private_directory(const char *path, const char *parent) {
    struct stat status;
    return lstat(path, &status) == 0 && S_ISDIR(status.st_mode) &&
           (status.st_mode & (S_IWGRP | S_IWOTH)) == 0 &&
           (status.st_uid == geteuid() || status.st_uid == mu_own_user(parent)) &&
           access(path, W_OK | X_OK) == 0;
}

MU_MUST_CHECK static bool make_private_directory(const char *parent, char *path, size_t size) {
    char number[16] = "";
    for (int turn = 1; turn <= NAMES_MAX; turn++) {
        int length = snprintf(path, size, "%s/my_utils-%u%s", parent, (unsigned)geteuid(), number);
        if (length < 0 || (size_t)length >= size) {
            return false;
        }
        if (mkdir(path, 0700) == 0) {
            return true;
        }
        if (errno != EEXIST) {
            return false;
        }
        if (is_private_directory(path, parent)) {
            return true;
        }
        snprintf(number, sizeof(number), "-%d", turn);
    }
    return false;
}

int mu_placement_local_directory(char *path, size_t size, struct mu_error *err) {
    const char *temporary = getenv("TMPDIR");
    const char *parents[] = {"/dev/shm", temporary == NULL ? "/tmp" : temporary, "/tmp"};
    for (size_t i = 0; i < sizeof(parents) / sizeof(parents[0]); i++) {
        if (mu_placement_is_local(parents[i]) && make_private_directory(parents[i], path, size)) {
            return MU_OK;
        }
    }
    return mu_error_set(err, MU_ERR_IO, "no local directory for the journal: tried /dev/shm, %s",
                        parents[1]);
}

void mu_placement_of(const char *path, char line[MU_PLACE_BYTES]) {
    char directory[1280], boot_id[MU_BOOT_ID_BYTES];
    struct stat status;
    line[0] = '\0';
    const char *slash = strrchr(path, '/');
    size_t length = slash == NULL ? sizeof(directory) : (size_t)(slash - path);
    if (length >= sizeof(directory)) {
        return;
    }
    memcpy(directory, path, length);
    directory[length] = '\0';
    mu_boot_id(boot_id);
    if (boot_id[0] != '\0' && stat(directory, &status) == 0) {
        snprintf(line, MU_PLACE_BYTES, "%s %llu %llu", boot_id, (unsigned long long)status.st_dev,
                 (unsigned long long)status.st_ino);
    }
}
