/* Keeps the process alive when the file system cannot provide a page of a mapped journal.
 *
 * A store into a mapped file ends in SIGBUS when a copy-on-write file system is full, or when
 * somebody has cut the file. The handler of this file puts a page of memory in the place of such a
 * page, with the same contents as far as they are known, and the store is repeated there. The file
 * is removed at the first such page: from then on it misses what the process writes, and a reader
 * would take it for the whole.
 *
 * A signal has one handler in a process, so the table of mappings and the handlers that were there
 * before are static: the only such state in the engine. What is not about a mapping of the table is
 * passed on to the handler before, and that happens by putting it back: the instruction faults
 * again, and the handler sees it as if this one did not exist.
 *
 * Functions are thread-safe.
 */
#ifndef MU_PAGE_GUARD_H
#define MU_PAGE_GUARD_H

#include <stddef.h>
#include <stdint.h>

#include "base/error.h"

enum { MU_GUARDED_MAX = 256, MU_GUARD_NONE = -1 };

/* Fills a page of zeros, `bytes` from `offset` on, that the file does not have any more. Runs in
 * the handler. */
typedef void (*mu_guard_fill)(const void *owner, size_t offset, uint8_t *page, size_t bytes);

/* All borrowed while the mapping is in the table. */
struct mu_guarded {
    uint8_t *base; /* of a shared mapping of the whole file */
    size_t bytes;
    int fd;
    const char *path;
    mu_guard_fill fill;
    const void *owner;
};

/* Puts a mapping into the table, and the handler into its place. */
MU_MUST_CHECK int mu_page_guard_add(const struct mu_guarded *mapping, int *index,
                                    struct mu_error *err);

/* The mapping was moved. Nobody may use it meanwhile. */
void mu_page_guard_move(int index, uint8_t *base);

/* How many bytes from the base on are in use. */
void mu_page_guard_use(int index, size_t bytes);

/* Pages that were replaced. 0 for MU_GUARD_NONE. */
uint64_t mu_page_guard_replaced(int index);

/* Does nothing for MU_GUARD_NONE. */
void mu_page_guard_remove(int index);

/* Puts the handler before one that came later, such as faulthandler's, unless the table is empty.
 * One system call where nothing changed. */
void mu_page_guard_put_first(void);

#endif
