#include <arm_neon.h>

/* Byte i is in vector i % 4, so that four bytes whose bits are neighbours in the mask are in the
 * same place of the four vectors. */
typedef uint8x16x4_t block_bytes;

static inline block_bytes load_block(const char *bytes) {
    return vld4q_u8((const uint8_t *)bytes);
}

/* NEON has no instruction that gathers a bit of each byte. Shifts with insertion gather them: of
 * two vectors, of four, and then of neighbours in one vector, whose halves are narrowed to a mask.
 */
static inline uint64_t equal_mask(block_bytes block, char byte) {
    uint8x16_t wanted = vdupq_n_u8((uint8_t)byte);
    uint8x16_t first = vceqq_u8(block.val[0], wanted), second = vceqq_u8(block.val[1], wanted);
    uint8x16_t third = vceqq_u8(block.val[2], wanted), fourth = vceqq_u8(block.val[3], wanted);
    uint8x16_t low = vsriq_n_u8(second, first, 1), high = vsriq_n_u8(fourth, third, 1);
    uint8x16_t nibbles = vsriq_n_u8(high, low, 2);
    uint8x16_t both = vsriq_n_u8(nibbles, nibbles, 4);
    uint8x8_t mask = vshrn_n_u16(vreinterpretq_u16_u8(both), 4);
    return vget_lane_u64(vreinterpret_u64_u8(mask), 0);
}

/* Not every aarch64 has the multiplication without carries. */
static inline uint64_t running_parity(uint64_t bits) {
    for (int by = 1; by < 64; by *= 2) {
        bits ^= bits << by;
    }
    return bits;
}

#include "csv/csv_scan_vector.h"

enum mu_csv_scan_result mu_csv_scan_neon(const char *row, const char *limit,
                                         struct mu_csv_cut *cut) {
    return scan_row(row, limit, cut);
}
