/* The loop of the fast scanners, over blocks of 64 bytes: included by each file that makes a
 * variant.
 *
 * Before the include a file defines the type `block_bytes` and the functions below. Bit i of a mask
 * belongs to byte i of the block.
 *
 * - load_block(bytes): 64 bytes, at any alignment
 * - equal_mask(block, byte): which bytes are that one
 * - running_parity(bits): bit i is the parity of the bits 0 to i
 */
#ifndef MU_CSV_SCAN_VECTOR_H
#define MU_CSV_SCAN_VECTOR_H

#include "csv/csv_scan.h"

enum { BLOCK = 64 };

static inline enum mu_csv_scan_result scan_row(const char *row, const char *limit,
                                               struct mu_csv_cut *cut) {
    uint64_t open = 0; /* all ones when the block starts inside quotes */
    uint64_t hidden_line_ends = 0, adjacent = 0, last_was_quote = 0;
    int count = 0;
    for (const char *block = row; block < limit; block += BLOCK) {
        block_bytes bytes = load_block(block);
        uint64_t quotes = equal_mask(bytes, '"');
        uint64_t line_ends = equal_mask(bytes, '\n');
        uint64_t inside = open;
        if (quotes != 0) {
            adjacent |= quotes & (quotes << 1 | last_was_quote);
            inside ^= running_parity(quotes);
            open = (uint64_t)((int64_t)inside >> (BLOCK - 1));
        }
        last_was_quote = quotes >> (BLOCK - 1);
        uint64_t ends = line_ends & ~inside;
        uint64_t before_end = ends ^ (ends - 1); /* up to and with the line end; all when none */
        uint64_t commas = equal_mask(bytes, ',') & ~inside & before_end;
        hidden_line_ends |= line_ends & inside & before_end;
        for (; commas != 0 && count < MU_CSV_COLUMNS_MAX; commas &= commas - 1) {
            cut->end[count++] = block + __builtin_ctzll(commas);
        }
        if (ends != 0) {
            const char *end = block + __builtin_ctzll(ends);
            if (end >= limit) {
                break;
            }
            if (count < MU_CSV_COLUMNS_MAX) {
                cut->end[count++] = end;
            }
            cut->row_end = end;
            cut->count = count;
            cut->adjacent_quotes = adjacent != 0;
            cut->line_end_in_quotes = hidden_line_ends != 0;
            return MU_CSV_SCAN_ROW;
        }
    }
    return MU_CSV_SCAN_MORE;
}

#endif
