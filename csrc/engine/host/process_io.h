/* What a process has read from storage, as the kernel counts it. */
#ifndef MU_PROCESS_IO_H
#define MU_PROCESS_IO_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

/* Opens the file `io` of a process: a descriptor, or -1 where the kernel has none or refuses it.
 * Closed by mu_proc_close. */
int mu_process_io_open(pid_t process);

/* Bytes that all of its threads had read from storage, not what was in memory already. False where
 * the kernel does not say, and *out stays. */
bool mu_process_io_read_bytes(int file, uint64_t *out);

#endif
