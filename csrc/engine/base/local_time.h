/* Local time as text, in a way that a fork does not spoil.
 *
 * localtime_r and strftime take a lock of libc, which a child of fork() gets as it was: if a thread
 * of the parent held it at that moment, every localtime in the child waits forever. Here a fork
 * waits until no thread is inside. Thread-safe.
 */
#ifndef MU_LOCAL_TIME_H
#define MU_LOCAL_TIME_H

#include <stddef.h>
#include <stdint.h>

/* Writes Unix seconds by a format of strftime; returns the bytes, without the end, 0 where `size`
 * is too small. A year that has no int is that of 1900. */
size_t mu_local_time_text(int64_t second, const char *format, char *text, size_t size);

#endif
