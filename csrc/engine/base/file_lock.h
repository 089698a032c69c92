/* A lock on a whole file, held until its descriptor is closed or the process ends.
 *
 * flock, and where the file system has none, an open-file-description lock. All processes on a file
 * system find the same one. Thread-safe.
 */
#ifndef MU_FILE_LOCK_H
#define MU_FILE_LOCK_H

enum mu_file_lock {
    MU_LOCK_TAKEN,
    MU_LOCK_HELD,    /* by another descriptor */
    MU_LOCK_UNKNOWN, /* the file system locks nothing */
};

/* Takes the lock for writing, without waiting. The descriptor is open for writing. */
enum mu_file_lock mu_file_lock_take(int fd);

/* Whether another descriptor holds it: HELD, TAKEN when nobody does, or UNKNOWN. */
enum mu_file_lock mu_file_lock_state(int fd);

#endif
