/* Which process a number means: numbers are used again, with another start. */
#ifndef MU_PROCESS_H
#define MU_PROCESS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* When the process began, in clock ticks after boot; 0 when there is none, or /proc does not say.
 */
uint64_t mu_process_start(int32_t pid);

/* The same as Unix ns by this host's clock as it is now, to a clock tick; 0 for 0. */
int64_t mu_process_began_ns(uint64_t start);

/* Whether the process with this number is still the one that began then. Without /proc: whether
 * there is any. */
bool mu_process_lives(int32_t pid, uint64_t start);

enum { MU_BOOT_ID_BYTES = 40 };

/* Of the running kernel: another one after each boot. Empty where /proc does not say. */
void mu_boot_id(char out[MU_BOOT_ID_BYTES]);

#endif
