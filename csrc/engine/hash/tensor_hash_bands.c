#include "hash/tensor_hash_bands.h"

#include <string.h>

#include "hash/tensor_hash_squares.h"
#include "hash/tensor_hash_stream.h"

/* A band is as many lines as fill some lines of the cache. Rows of it, an element of each line, are
 * copied to where they lie close to each other, and are transposed from there in tiles. Pitches are
 * such that what is used together does not share the sets of the cache. */
enum {
    BAND_BYTES = 256,
    BAND_PITCH = BAND_BYTES + 64,
    ROWS_MAX = 128,
    LINES_MAX = BAND_BYTES,
    TILE_LINES = 32,
    TILE_BYTES = 512,
    TILE_PITCH = TILE_BYTES + 64,
    AHEAD = 16, /* rows that are on their way from memory */
};

/* --- dimensions --------------------------------------------------------------------------- */

/* Those of more than one index, neighbours merged where one continues the other in memory and in
 * the whole. Returns their number. */
static int merged_dims(const struct mu_hash_box *box, struct mu_hash_dim *dims) {
    int ndim = 0;
    for (int dim = 0; dim < box->tensor.ndim; dim++) {
        int64_t size = box->tensor.shape[dim], step = box->step[dim];
        uint64_t pitch = box->pitch[dim];
        if (size == 1) {
            continue;
        }
        struct mu_hash_dim *last = &dims[ndim - 1];
        if (ndim > 0 && last->step == step * size && last->pitch == pitch * (uint64_t)size) {
            *last = (struct mu_hash_dim){.size = last->size * size, .step = step, .pitch = pitch};
        } else {
            dims[ndim++] = (struct mu_hash_dim){.size = size, .step = step, .pitch = pitch};
        }
    }
    return ndim;
}

bool mu_hash_bands_of(const struct mu_hash_box *box, struct mu_hash_bands *bands) {
    struct mu_hash_dim dims[MU_TENSOR_DIMS_MAX];
    int ndim = merged_dims(box, dims), across = -1;
    int64_t item = mu_dtype_info(box->tensor.dtype)->size;
    uint64_t places = box->begin;
    *bands = (struct mu_hash_bands){.data = box->tensor.data, .begin = box->begin, .item = item};
    for (int dim = 0; dim < ndim - 1; dim++) {
        places |= dims[dim].pitch;
        across = dims[dim].step == item ? dim : across;
    }
    if (across < 0 || dims[ndim - 1].pitch != (uint64_t)item || dims[ndim - 1].step == item) {
        return false;
    }
    bands->across = dims[across];
    bands->along = dims[ndim - 1];
    places |= (uint64_t)(bands->along.size * item);
    bands->group_bands = (uint64_t)(bands->across.size * item + BAND_BYTES - 1) / BAND_BYTES;
    bands->count = bands->group_bands;
    for (int dim = 0; dim < ndim - 1; dim++) {
        if (dim != across) {
            bands->dims[bands->ndim++] = dims[dim];
            bands->count *= (uint64_t)dims[dim].size;
        }
    }
    return places % MU_HASH_QUAD_BYTES == 0;
}

/* --- bands -------------------------------------------------------------------------------- */

static int64_t at_most(int64_t value, int64_t limit) {
    return value < limit ? value : limit;
}

static void gather(uint8_t *to, const uint8_t *from, int64_t step, int64_t rows, int64_t bytes) {
    for (int64_t row = 0; row < rows; row++, from += step, to += BAND_PITCH) {
        for (int64_t at = 0; at < bytes; at += 64) {
            __builtin_prefetch(from + AHEAD * step + at);
        }
        if (bytes == BAND_BYTES) {
            memcpy(to, from, BAND_BYTES); /* a size that the compiler knows */
        } else {
            memcpy(to, from, (size_t)bytes);
        }
    }
}

static void transpose(uint8_t *to, const uint8_t *from, int64_t rows, int64_t lines, int64_t item) {
    int64_t side = MU_HASH_QUAD_BYTES / item;
    for (int64_t row = 0; row < rows; row += side) {
        for (int64_t line = 0; line < lines; line += side) {
            mu_hash_transpose(to + line * TILE_PITCH + row * item, TILE_PITCH,
                              from + row * BAND_PITCH + line * item, BAND_PITCH,
                              at_most(lines - line, side), item);
        }
    }
}

/* Adds so many elements of each line from the one that is the first row of `rows` on; the first of
 * them is at the byte `begin` of the whole. */
static void add_rows(const struct mu_hash_bands *bands, const uint8_t *rows, int64_t count,
                     int64_t lines, uint64_t begin, struct mu_hash_stream *streams) {
    uint8_t tile[TILE_LINES * TILE_PITCH];
    int64_t item = bands->item;
    for (int64_t first = 0; first < lines; first += TILE_LINES) {
        int64_t some = at_most(lines - first, TILE_LINES);
        transpose(tile, rows + first * item, count, some, item);
        for (int64_t line = 0; line < some; line++) {
            mu_hash_stream_add(&streams[first + line], tile + line * TILE_PITCH,
                               begin + (uint64_t)(first + line) * bands->across.pitch,
                               (uint64_t)(count * item));
        }
    }
}

static void add_band(const struct mu_hash_bands *bands, const uint8_t *data, uint64_t begin,
                     int64_t lines, struct mu_hash_sums *sums) {
    uint8_t rows[ROWS_MAX * BAND_PITCH];
    struct mu_hash_stream streams[LINES_MAX];
    int64_t item = bands->item, most = at_most(TILE_BYTES / item, ROWS_MAX);
    for (int64_t line = 0; line < lines; line++) {
        mu_hash_stream_start(&streams[line], mu_hash_kernel_best(), sums);
    }
    for (int64_t first = 0; first < bands->along.size; first += most) {
        int64_t count = at_most(bands->along.size - first, most), step = bands->along.step;
        gather(rows, data + first * step, step, count, lines * item);
        add_rows(bands, rows, count, lines, begin + (uint64_t)(first * item), streams);
    }
    for (int64_t line = 0; line < lines; line++) {
        mu_hash_stream_end(&streams[line]);
    }
}

void mu_hash_bands_add(const struct mu_hash_bands *bands, uint64_t first, uint64_t after,
                       struct mu_hash_sums *sums) {
    int64_t band_lines = BAND_BYTES / bands->item;
    for (uint64_t i = first; i < after; i++) {
        int64_t line = (int64_t)(i % bands->group_bands) * band_lines;
        const uint8_t *data = bands->data + line * bands->item;
        uint64_t begin = bands->begin + (uint64_t)line * bands->across.pitch;
        uint64_t group = i / bands->group_bands;
        for (int dim = bands->ndim - 1; dim >= 0; dim--) {
            int64_t index = (int64_t)(group % (uint64_t)bands->dims[dim].size);
            data += index * bands->dims[dim].step;
            begin += (uint64_t)index * bands->dims[dim].pitch;
            group /= (uint64_t)bands->dims[dim].size;
        }
        add_band(bands, data, begin, at_most(bands->across.size - line, band_lines), sums);
    }
}
