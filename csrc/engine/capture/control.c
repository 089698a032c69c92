#include "capture/control.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/own_files.h"

enum { CONTROL_PATH_BYTES = MU_CONTROL_DIRECTORY_BYTES + sizeof(MU_CONTROL_NAME) + 1 };

void mu_control_init(struct mu_control *control) {
    bool wanted = atomic_load(&control->wanted);
    memset(control, 0, sizeof(*control));
    pthread_mutex_init(&control->lock, NULL);
    atomic_store(&control->wanted, wanted);
}

static void drop(struct mu_control_text *text, bool *has) {
    if (*has) {
        free(text->bytes);
    }
    *text = (struct mu_control_text){0};
    *has = false;
}

void mu_control_release(struct mu_control *control) {
    drop(&control->first, &control->has_first);
    drop(&control->latest, &control->has_latest);
    pthread_mutex_destroy(&control->lock);
}

/* --- reading ------------------------------------------------------------------------------ */

static bool same_file(const struct stat *a, const struct stat *b) {
    return a->st_ino == b->st_ino && a->st_dev == b->st_dev && a->st_size == b->st_size &&
           a->st_uid == b->st_uid && a->st_mode == b->st_mode &&
           a->st_mtim.tv_sec == b->st_mtim.tv_sec && a->st_mtim.tv_nsec == b->st_mtim.tv_nsec &&
           a->st_ctim.tv_sec == b->st_ctim.tv_sec && a->st_ctim.tv_nsec == b->st_ctim.tv_nsec;
}

static enum mu_control_trouble check_file(const struct stat *found, uid_t user) {
    if (!S_ISREG(found->st_mode)) {
        return MU_CONTROL_NOT_A_FILE;
    }
    if (found->st_uid != user && found->st_uid != 0) {
        return MU_CONTROL_STRANGER;
    }
    if ((found->st_mode & (S_IWGRP | S_IWOTH)) != 0) {
        return MU_CONTROL_WRITABLE;
    }
    return found->st_size > MU_CONTROL_BYTES_MAX ? MU_CONTROL_TOO_LARGE : MU_CONTROL_FINE;
}

static enum mu_control_trouble read_bytes(int fd, struct mu_control_text *text) {
    text->bytes = malloc(MU_CONTROL_BYTES_MAX);
    if (text->bytes == NULL) {
        return MU_CONTROL_UNREADABLE;
    }
    while (text->length < MU_CONTROL_BYTES_MAX) {
        ssize_t got = read(fd, text->bytes + text->length, MU_CONTROL_BYTES_MAX - text->length);
        if (got < 0 && errno == EINTR) {
            continue;
        }
        if (got <= 0) {
            return got == 0 ? MU_CONTROL_FINE : MU_CONTROL_UNREADABLE;
        }
        text->length += (size_t)got;
    }
    return MU_CONTROL_FINE;
}

static void read_text(int fd, const struct stat *found, uid_t user, struct mu_control_text *text) {
    text->trouble = check_file(found, user);
    if (text->trouble == MU_CONTROL_FINE) {
        text->trouble = read_bytes(fd, text);
    }
    if (text->trouble != MU_CONTROL_FINE) {
        free(text->bytes);
        text->bytes = NULL;
        text->length = 0;
    }
}

/* Adds a text to those that wait. The first text of a directory is kept until it is taken: it shows
 * which requests are older than the process. */
static void keep_lock_held(struct mu_control *control, struct mu_control_text *text, bool first) {
    struct mu_control_text *place = first ? &control->first : &control->latest;
    bool *has = first ? &control->has_first : &control->has_latest;
    drop(place, has);
    *place = *text;
    *has = true;
    atomic_fetch_or(&control->attention, MU_CONTROL_FILE);
}

/* Whether the text is done with. */
static bool tell_listener(struct mu_control *control, const struct mu_control_text *text) {
    pthread_mutex_lock(&control->lock);
    mu_control_listener *listener = control->listener;
    void *context = control->listener_context;
    pthread_mutex_unlock(&control->lock);
    return listener != NULL && listener(context, text);
}

/* Opening a file, unlike stat, asks an NFS server for its present state. */
void mu_control_poll(struct mu_control *control) {
    char path[CONTROL_PATH_BYTES];
    pthread_mutex_lock(&control->lock);
    bool watched = control->directory[0] != '\0' && atomic_load(&control->wanted);
    unsigned moves = control->moves;
    uid_t user = control->user;
    bool first = !control->polled;
    struct stat seen = control->seen, found = {0};
    int seen_errno = control->seen_errno;
    snprintf(path, sizeof(path), "%s/" MU_CONTROL_NAME, control->directory);
    pthread_mutex_unlock(&control->lock);
    if (!watched) {
        return;
    }
    struct mu_control_text text = {0};
    bool changed = false;
    int fd = open(path, O_RDONLY | O_NONBLOCK | O_NOFOLLOW | O_NOCTTY | O_CLOEXEC);
    int failed = fd < 0 ? errno : 0;
    if (fd >= 0) {
        changed = fstat(fd, &found) == 0 && !same_file(&found, &seen);
        if (changed) {
            read_text(fd, &found, user, &text);
        }
        close(fd);
    } else if (failed != ENOENT && failed != seen_errno) {
        changed = true;
        text.trouble = failed == ELOOP ? MU_CONTROL_NOT_A_FILE : MU_CONTROL_UNREADABLE;
    }
    text.at_start = first;
    bool waits = changed && !tell_listener(control, &text);
    pthread_mutex_lock(&control->lock);
    if (moves == control->moves) {
        control->seen = found;
        control->seen_errno = failed;
        control->polled = true;
        if (waits) {
            keep_lock_held(control, &text, first);
            text.bytes = NULL;
        }
    }
    pthread_mutex_unlock(&control->lock);
    free(text.bytes);
}

/* --- the reader --------------------------------------------------------------------------- */

void mu_control_begin(struct mu_control *control, const char *directory) {
    uid_t user = directory[0] == '\0' ? geteuid() : mu_own_user(directory);
    pthread_mutex_lock(&control->lock);
    drop(&control->first, &control->has_first);
    drop(&control->latest, &control->has_latest);
    atomic_fetch_and(&control->attention, ~(unsigned)MU_CONTROL_FILE);
    snprintf(control->directory, sizeof(control->directory), "%s", directory);
    control->user = user;
    control->seen = (struct stat){0};
    control->seen_errno = 0;
    control->polled = false;
    control->moves++;
    pthread_mutex_unlock(&control->lock);
    mu_control_poll(control);
}

void mu_control_listen(struct mu_control *control, bool wanted) {
    pthread_mutex_lock(&control->lock);
    bool begins = wanted && !atomic_load(&control->wanted);
    control->polled = control->polled && !begins;
    atomic_store(&control->wanted, wanted);
    pthread_mutex_unlock(&control->lock);
    if (begins) {
        mu_control_poll(control);
    }
}

void mu_control_set_listener(struct mu_control *control, mu_control_listener *listener,
                             void *context) {
    pthread_mutex_lock(&control->lock);
    control->listener = listener;
    control->listener_context = context;
    pthread_mutex_unlock(&control->lock);
}

bool mu_control_take(struct mu_control *control, struct mu_control_text *out) {
    pthread_mutex_lock(&control->lock);
    bool is_first = control->has_first;
    bool found = is_first || control->has_latest;
    if (found) {
        *out = is_first ? control->first : control->latest;
        *(is_first ? &control->has_first : &control->has_latest) = false;
    }
    if (!control->has_first && !control->has_latest) {
        atomic_fetch_and(&control->attention, ~(unsigned)MU_CONTROL_FILE);
    }
    pthread_mutex_unlock(&control->lock);
    return found;
}

void mu_control_watch_steps(struct mu_control *control, bool watch) {
    if (watch) {
        atomic_fetch_or(&control->attention, MU_CONTROL_STEPS);
    } else {
        atomic_fetch_and(&control->attention, ~(unsigned)MU_CONTROL_STEPS);
    }
}
