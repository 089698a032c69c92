#include "hash/tensor_hash_bands.h"

#include <string.h>

#include "hash/tensor_hash_stream.h"

/* A band is as many lines as fill some lines of the cache; a tile, a part of each of them. */
enum {
    BAND_BYTES = 64,
    LINES_MAX = BAND_BYTES,
    TILE_BYTES = 512,
    TILE_PITCH = TILE_BYTES + 64, /* so that lines do not share the sets of the cache */
    AHEAD = 24,                   /* elements of a line that are on their way from memory */
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

#define TRANSPOSE(type)                                                                            \
    for (int64_t i = 0; i < count; i++) {                                                          \
        __builtin_prefetch(from + (i + AHEAD) * step);                                             \
        for (int64_t line = 0; line < lines; line++) {                                             \
            memcpy(to + line * TILE_PITCH + i * (int64_t)sizeof(type),                             \
                   from + i * step + line * (int64_t)sizeof(type), sizeof(type));                  \
        }                                                                                          \
    }

/* Copies `count` elements of each line to where its elements lie one after the other. Constant
 * sizes, so that the compiler makes a load and a store of each copy. */
static void transpose(uint8_t *to, const uint8_t *from, int64_t step, int64_t count, int64_t lines,
                      int64_t item) {
    switch (item) {
    case 1:
        TRANSPOSE(uint8_t)
        break;
    case 2:
        TRANSPOSE(uint16_t)
        break;
    case 4:
        TRANSPOSE(uint32_t)
        break;
    case 8:
        TRANSPOSE(uint64_t)
        break;
    default:
        TRANSPOSE(uint64_t[2])
        break;
    }
}

static void add_band(const struct mu_hash_bands *bands, const uint8_t *data, uint64_t begin,
                     int64_t lines, struct mu_hash_sums *sums) {
    uint8_t tile[LINES_MAX * TILE_PITCH];
    struct mu_hash_stream streams[LINES_MAX];
    int64_t item = bands->item, width = TILE_BYTES / item;
    for (int64_t line = 0; line < lines; line++) {
        mu_hash_stream_start(&streams[line], mu_hash_kernel_best(), sums);
    }
    for (int64_t first = 0; first < bands->along.size; first += width) {
        int64_t left = bands->along.size - first, count = left < width ? left : width;
        transpose(tile, data + first * bands->along.step, bands->along.step, count, lines, item);
        for (int64_t line = 0; line < lines; line++) {
            mu_hash_stream_add(&streams[line], tile + line * TILE_PITCH,
                               begin + (uint64_t)line * bands->across.pitch +
                                   (uint64_t)(first * item),
                               (uint64_t)(count * item));
        }
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
        int64_t left = bands->across.size - line;
        const uint8_t *data = bands->data + line * bands->item;
        uint64_t begin = bands->begin + (uint64_t)line * bands->across.pitch;
        uint64_t group = i / bands->group_bands;
        for (int dim = bands->ndim - 1; dim >= 0; dim--) {
            int64_t index = (int64_t)(group % (uint64_t)bands->dims[dim].size);
            data += index * bands->dims[dim].step;
            begin += (uint64_t)index * bands->dims[dim].pitch;
            group /= (uint64_t)bands->dims[dim].size;
        }
        add_band(bands, data, begin, left < band_lines ? left : band_lines, sums);
    }
}
