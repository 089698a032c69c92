/* The control file of a run, `<log_dir>/my_utils.control.json`. Other processes write requests to a
 * job into it, such as for a capture. The code here does not parse it.
 *
 * The drain thread polls the file twice a second, and reads it when it has changed: the training
 * must not wait for a log directory that hangs. The training reads one number, `attention`, at
 * every set_step.
 *
 * Only a regular file is read that belongs to root or to the owner of our files there, and that
 * nobody else can write to. Thread-safe; after a fork the child calls mu_control_init and begins
 * anew.
 */
#ifndef MU_CONTROL_H
#define MU_CONTROL_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <sys/stat.h>

#define MU_CONTROL_NAME "my_utils.control.json"

enum { MU_CONTROL_BYTES_MAX = 64 * 1024, MU_CONTROL_DIRECTORY_BYTES = 1024 };

enum mu_control_attention {
    MU_CONTROL_FILE = 1,  /* a text waits for mu_control_take */
    MU_CONTROL_STEPS = 2, /* the reader wants to be called at every step */
};

enum mu_control_trouble {
    MU_CONTROL_FINE = 0,
    MU_CONTROL_STRANGER,   /* it belongs to another user */
    MU_CONTROL_WRITABLE,   /* other users can write to it */
    MU_CONTROL_TOO_LARGE,  /* more than MU_CONTROL_BYTES_MAX */
    MU_CONTROL_NOT_A_FILE, /* a link, a directory, a device */
    MU_CONTROL_UNREADABLE,
};

struct mu_control_text {
    char *bytes; /* owned; NULL when there is trouble */
    size_t length;
    enum mu_control_trouble trouble;
    bool at_start; /* it was there when the directory was opened */
};

/* Hears each text that is read, on the thread that read it; the text is the caller's. Returns
 * whether the text is done with: then nobody takes it, and no step is held up for it. */
typedef bool mu_control_listener(void *context, const struct mu_control_text *text);

struct mu_control {
    _Atomic unsigned attention;                 /* of enum mu_control_attention */
    _Atomic bool wanted;                        /* there is a reader */
    pthread_mutex_t lock;                       /* of all below */
    char directory[MU_CONTROL_DIRECTORY_BYTES]; /* empty: none is watched */
    uid_t user;                                 /* the owner of our files in it */
    unsigned moves;                             /* of `directory` */
    struct stat seen;                           /* the file that was read last; st_ino 0: none */
    int seen_errno;                             /* of the last attempt to open it */
    bool polled;                                /* for the first text, by any thread */
    struct mu_control_text first, latest;       /* the texts that wait for mu_control_take */
    bool has_first, has_latest;
    mu_control_listener *listener; /* borrowed, as its context; NULL for none */
    void *listener_context;
};

void mu_control_init(struct mu_control *control);
void mu_control_release(struct mu_control *control);

/* Sets whether there is a reader. The file is read only while there is one. The first call reads a
 * file that exists already.
 */
void mu_control_listen(struct mu_control *control, bool wanted);

/* Sets what is called with each text that is read from now on, at once, whether or not anybody
 * takes them. */
void mu_control_set_listener(struct mu_control *control, mu_control_listener *listener,
                             void *context);

/* Watches the directory from now on, "" for none. Reads at once a file that exists already. */
void mu_control_begin(struct mu_control *control, const char *directory);

/* Reads the file when it has changed. May block as long as the file system does. */
void mu_control_poll(struct mu_control *control);

/* Takes the oldest text that waits; false when there is none. The caller frees the text. */
bool mu_control_take(struct mu_control *control, struct mu_control_text *out);

void mu_control_watch_steps(struct mu_control *control, bool watch);

/* Whether this set_step must call the reader. */
static inline bool mu_control_calls(const struct mu_control *control) {
    return atomic_load_explicit(&control->attention, memory_order_relaxed) != 0;
}

#endif
