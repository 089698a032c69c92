/* The CSV reader on arbitrary bytes. The first byte says whether the input begins with a header. */
#include "csv/csv_reader.h"

#include <stdint.h>
#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* Reads each byte that the reader hands out, so that the address sanitizer sees it. */
static void read_columns(const struct mu_csv_row *row) {
    for (int column = 0; column < MU_CSV_COLUMN_COUNT; column++) {
        for (uint32_t i = 0; i < row->length[column]; i++) {
            volatile char seen = row->text[column][i];
            (void)seen;
        }
    }
}

static void read_all(struct mu_csv_reader *reader) {
    uint64_t line = 0;
    for (;;) {
        struct mu_csv_row row;
        enum mu_csv_status status = mu_csv_reader_next(reader, &row, NULL);
        if (status == MU_CSV_END || status == MU_CSV_FAILED) {
            return;
        }
        if (row.line < line) {
            abort();
        }
        line = row.line;
        if (status == MU_CSV_ROW) {
            read_columns(&row);
        }
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    if (size == 0) {
        return 0;
    }
    struct mu_csv_input input = {
        .name = "fuzz",
        .fd = -1,
        .data = (const char *)data + 1,
        .length = size - 1,
        .has_header = data[0] & 1,
    };
    struct mu_csv_reader reader;
    if (mu_csv_reader_init(&reader, &input, NULL) == MU_OK) {
        read_all(&reader);
    }
    mu_csv_reader_reset(&reader);
    return 0;
}
