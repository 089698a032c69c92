/* The line of an instruction, by the location table of a code object (Python 3.11 and later).
 *
 * The table is read in small pieces from the own process's memory, and trusted in nothing.
 */
#ifndef MU_LINE_TABLE_H
#define MU_LINE_TABLE_H

#include "process_stacks/own_memory.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { MU_LINE_TABLE_BYTES_MAX = 1024 * 1024 };

/* The line of the instruction that begins so many bytes after the first, with the table's bytes at
 * `address`. `first_line` for instructions before the first; 0 when it is not known. */
int mu_line_of(struct mu_own_memory *memory, uint64_t address, size_t length, int first_line,
               int64_t instruction);

#endif
