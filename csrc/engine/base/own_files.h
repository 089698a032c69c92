/* Files in directories that other users can write to as well.
 *
 * A file is ours if its owner is that of a new file that this process makes there: the server of a
 * network file system, and a user namespace, may know the process under another number. Functions
 * are thread-safe; what they open is closed on exec. None waits for the other end of a FIFO.
 */
#ifndef MU_OWN_FILES_H
#define MU_OWN_FILES_H

#include <stdbool.h>
#include <sys/types.h>

#include "base/error.h"

/* Of the longest path that the engine makes, with a NUL. */
enum { MU_PATH_BYTES = 1280 };

/* The owner of new files in the directory. Makes one for a moment; where that fails it is the
 * process's effective user. */
uid_t mu_own_user(const char *directory);

/* The same file under a number above those of the standard streams, for a file that stays open.
 * Where a program has closed a stream, its number is the next one, and what is printed would get
 * into the file. -1 with errno, also for -1. */
MU_MUST_CHECK int mu_above_streams(int fd);

/* A file that stays open. A program may close descriptors that it has not opened, and open another
 * file under the same number. */
struct mu_file_id {
    dev_t device;
    ino_t inode;
};

struct mu_file_id mu_file_id(int fd);

/* Whether the descriptor is still that file. Otherwise errno is set. */
bool mu_is_file(int fd, struct mu_file_id file);

/* Closes the descriptor where it is still that file. */
void mu_close_file(int fd, struct mu_file_id file);

/* Opens a regular file, whoever owns it. -1 with errno: ELOOP for a symbolic link, EINVAL for what
 * is not a regular file. */
MU_MUST_CHECK int mu_open_regular(const char *path, int flags, mode_t mode);

/* The same for a file that belongs to `user` and has no other name. EPERM for any other. */
MU_MUST_CHECK int mu_open_own(const char *path, int flags, mode_t mode, uid_t user);

/* Whether the last of the two functions failed because of what the file is: it is not ours to
 * write to. Otherwise the system could not open it. */
bool mu_is_of_others(int open_errno);

/* A new file, open for writing, where there may be another one: that one is removed, and nothing is
 * written to what it names. -1 with errno. */
MU_MUST_CHECK int mu_open_instead(const char *path, mode_t mode);

#endif
