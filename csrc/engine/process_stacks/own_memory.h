/* Reads the memory of the own process by system calls: an address that is not mapped, or not any
 * more, is a read that fails and no fault.
 *
 * Uses process_vm_readv, and pread on /proc/self/mem where a filter refuses that. One thread at a
 * time; a child of fork opens its own.
 */
#ifndef MU_OWN_MEMORY_H
#define MU_OWN_MEMORY_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

enum { MU_MEMORY_PARTS_MAX = 64 };

struct mu_own_memory {
    pid_t pid;
    int fd; /* of /proc/self/mem; -1 while process_vm_readv works */
};

struct mu_memory_part {
    uint64_t address;
    void *into; /* borrowed */
    size_t length;
};

void mu_own_memory_open(struct mu_own_memory *memory);
void mu_own_memory_close(struct mu_own_memory *memory);

/* From now on as if process_vm_readv were refused. False when /proc/self/mem is refused, too. */
bool mu_own_memory_use_file(struct mu_own_memory *memory);

/* Reads all parts, in their order, within one call where the system has one. At most
 * MU_MEMORY_PARTS_MAX. False when any byte could not be read. */
bool mu_own_memory_read_parts(struct mu_own_memory *memory, const struct mu_memory_part *parts,
                              size_t count);

static inline bool mu_own_memory_read(struct mu_own_memory *memory, uint64_t address, void *into,
                                      size_t length) {
    struct mu_memory_part part = {address, into, length};
    return mu_own_memory_read_parts(memory, &part, 1);
}

#endif
