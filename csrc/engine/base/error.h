/* Errors of the engine: a code that is returned, and a message that the caller owns.
 *
 * A function that can fail returns 0 (MU_OK) or one of these codes, and takes a `struct mu_error *`
 * as its last argument. The pointer may be NULL when the caller does not want the message.
 * The struct needs no clean-up; it may live on the stack and be used again.
 */
#ifndef MU_ERROR_H
#define MU_ERROR_H

/* Stands before a function that returns such a code: the compiler warns a caller that ignores
 * it. */
#define MU_MUST_CHECK __attribute__((warn_unused_result))

enum mu_code {
    MU_OK = 0,
    MU_ERR_ARGUMENT, /* the caller passed something that is not allowed */
    MU_ERR_NO_MEMORY,
    MU_ERR_IO,      /* a system call failed; sys_errno says why */
    MU_ERR_FORMAT,  /* the bytes of a file are not what they should be */
    MU_ERR_VERSION, /* a file of ours, but written by a newer version */
    MU_ERR_STATE,   /* the object cannot do that now */
    MU_ERR_LIMIT,   /* a stated bound was reached */
    MU_ERR_STOPPED, /* the caller asked for it while the call waited */
};

enum { MU_ERROR_MESSAGE_MAX = 512 };

struct mu_error {
    int code;      /* enum mu_code */
    int sys_errno; /* errno of the failed call, 0 when no call failed */
    char message[MU_ERROR_MESSAGE_MAX];
};

/* Fills `err` (if not NULL) and returns `code`, so that a caller can write
 * `return mu_error_set(err, MU_ERR_FORMAT, "...")`. */
int mu_error_set(struct mu_error *err, int code, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

/* The same for a failed system call: reads errno first, and names the action and its object.
 * `object` may be NULL. Returns MU_ERR_IO, or MU_ERR_NO_MEMORY for ENOMEM. */
int mu_error_sys(struct mu_error *err, const char *action, const char *object);

/* Marks a code as ignored on purpose: it cannot be an error, or the error is kept and reported
 * later. */
static inline void mu_error_kept(int code) {
    (void)code;
}

/* Inline, so that compilers and static analysers see that it never returns MU_OK. */
static inline int mu_error_no_memory(struct mu_error *err, const char *what) {
    mu_error_set(err, MU_ERR_NO_MEMORY, "out of memory: %s", what);
    return MU_ERR_NO_MEMORY;
}

#endif
