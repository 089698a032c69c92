/* Pages that are zeros again in a forked child.
 *
 * The kernel does it (MADV_WIPEONFORK). Some sandboxes refuse that, such as gVisor, and others take
 * it and do nothing, such as qemu for processes of another architecture. So a handler of
 * pthread_atfork does it too, which only children that fork() made run. Thread-safe.
 */
#ifndef MU_WIPED_PAGE_H
#define MU_WIPED_PAGE_H

enum {
    MU_WIPED_PAGE_BYTES = 4096,
    MU_WIPED_PAGES_MAX = 4096 /* that the handler knows */
};

/* A page of zeros; NULL with errno set when there is no memory, or neither way is left to wipe it.
 */
void *mu_wiped_page_map(void);

/* A page of mu_wiped_page_map, or NULL. */
void mu_wiped_page_unmap(void *page);

#endif
