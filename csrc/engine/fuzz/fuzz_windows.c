/* Blocks of windows with any head and payload. They are sealed, so that the reader looks into them;
 * what the first byte says is cut off the end. */
#include "timing/window_table.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* What a reader may rely on. */
static void check(const struct mu_window_table *table) {
    for (size_t i = 0; i < table->entry_count; i++) {
        if (table->entries[i].window >= table->head_count ||
            table->entries[i].path >= table->path_count) {
            abort();
        }
    }
    for (size_t i = 0; i < table->path_count; i++) {
        uint32_t parent = table->paths[i].parent;
        if (parent != MU_WINDOW_NO_PARENT && parent >= i) {
            abort();
        }
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    char block[2 * MU_WINDOW_BLOCK_MAX];
    size_t most = MU_WINDOW_BLOCK_MAX - MU_WINDOW_END_BYTES;
    if (size < 1 + MU_WINDOW_HEAD_BYTES || size - 1 > most) {
        return 0;
    }
    struct mu_window_head head;
    struct mu_window_table table;
    memcpy(block, data + 1, size - 1);
    memcpy(&head, block, sizeof(head));
    mu_window_block_seal(block, &head, size - 1 - MU_WINDOW_HEAD_BYTES);
    size_t length = head.bytes;
    memcpy(block + length, block, length - data[0] % length);
    if (mu_window_table_init(&table, NULL) == MU_OK &&
        mu_window_table_add(&table, block, 2 * length - data[0] % length, NULL) == MU_OK) {
        check(&table);
    }
    mu_window_table_reset(&table);
    return 0;
}
