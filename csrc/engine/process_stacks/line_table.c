#include "process_stacks/line_table.h"

enum {
    PIECE_BYTES = 512,
    CODE_UNIT_BYTES = 2,
    ENTRY_FLAG = 0x80, /* the first byte of each entry has it, and no other */
    VARINT_MORE = 0x40,
    VARINT_BITS_MAX = 30,
};

/* Kinds of entries: PyCodeLocationInfoKind in CPython's Include/cpython/code.h. */
enum {
    ONE_LINE_0 = 10, /* to 12: the line is the one before, plus the kind less this */
    ONE_LINE_2 = 12,
    NO_COLUMNS = 13,
    LONG = 14,
    NO_LOCATION = 15,
};

struct table {
    struct mu_own_memory *memory; /* borrowed */
    uint64_t address;             /* of the next piece */
    size_t left;                  /* bytes from there on */
    size_t at, length;            /* within the piece */
    bool ended;                   /* or unreadable */
    unsigned char piece[PIECE_BYTES];
};

static bool next_piece(struct table *table) {
    table->length = table->left < PIECE_BYTES ? table->left : PIECE_BYTES;
    table->at = 0;
    if (table->length == 0 ||
        !mu_own_memory_read(table->memory, table->address, table->piece, table->length)) {
        table->ended = true;
        return false;
    }
    table->address += table->length;
    table->left -= table->length;
    return true;
}

static unsigned peek(struct table *table) {
    if (table->ended || (table->at == table->length && !next_piece(table))) {
        return ENTRY_FLAG;
    }
    return table->piece[table->at];
}

static unsigned take(struct table *table) {
    unsigned byte = peek(table);
    table->at += !table->ended;
    return byte;
}

static int32_t take_signed(struct table *table) {
    uint32_t value = 0;
    unsigned byte = VARINT_MORE;
    for (int bits = 0; bits <= VARINT_BITS_MAX && (byte & VARINT_MORE) && !table->ended;
         bits += 6) {
        byte = take(table);
        value |= (uint32_t)(byte & 0x3f) << bits;
    }
    return value & 1 ? -(int32_t)(value >> 1) : (int32_t)(value >> 1);
}

/* How much further the line of an entry is than that of the one before. */
static int32_t line_step(struct table *table, unsigned kind) {
    if (kind == LONG || kind == NO_COLUMNS) {
        return take_signed(table);
    }
    return kind >= ONE_LINE_0 && kind <= ONE_LINE_2 ? (int32_t)(kind - ONE_LINE_0) : 0;
}

static void skip_entry(struct table *table) {
    while (!table->ended && (peek(table) & ENTRY_FLAG) == 0) {
        take(table);
    }
}

int mu_line_of(struct mu_own_memory *memory, uint64_t address, size_t length, int first_line,
               int64_t instruction) {
    if (instruction < 0) {
        return first_line;
    }
    struct table table = {.memory = memory, .address = address, .left = length};
    if (length > MU_LINE_TABLE_BYTES_MAX) {
        return 0;
    }
    int64_t end = 0, line = first_line;
    while (true) {
        unsigned entry = take(&table);
        if (table.ended || (entry & ENTRY_FLAG) == 0) {
            return 0;
        }
        unsigned kind = entry >> 3 & 15;
        line += line_step(&table, kind);
        end += (int64_t)((entry & 7) + 1) * CODE_UNIT_BYTES;
        if (instruction < end) {
            return kind == NO_LOCATION || line < 0 || line > INT32_MAX ? 0 : (int)line;
        }
        skip_entry(&table);
    }
}
