#include "text.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

text text_in(char *bytes, size_t capacity)
{
    text made;
    made.bytes = bytes;
    made.capacity = capacity;
    made.length = 0;
    bytes[0] = '\0';
    return made;
}

void text_add(text *to, const char *string)
{
    size_t length = strlen(string), room = to->capacity - to->length - 1u;
    if (length > room) {
        length = room;
    }
    memcpy(to->bytes + to->length, string, length);
    to->length += length;
    to->bytes[to->length] = '\0';
}

void text_count(text *to, uint64_t number)
{
    char digits[24];
    (void)snprintf(digits, sizeof digits, "%" PRIu64, number);
    text_add(to, digits);
}

void text_id(text *to, uint32_t id)
{
    char digits[12];
    (void)snprintf(digits, sizeof digits, "%03" PRIX32, id);
    text_add(to, digits);
}

/* Adds a number as printf wrote it; a whole one gets `.0`, as in the lines of kdgat. */
static void add_number(text *to, const char *digits)
{
    text_add(to, digits);
    if (strpbrk(digits, ".e") == NULL) {
        text_add(to, ".0");
    }
}

void text_double(text *to, double number)
{
    char digits[40];
    int precision;
    if (!isfinite(number)) {
        text_add(to, "null");
        return;
    }
    for (precision = 15; precision <= 17; precision++) {
        (void)snprintf(digits, sizeof digits, "%.*g", precision, number);
        if (strtod(digits, NULL) == number) {
            break;
        }
    }
    add_number(to, digits);
}

void text_float(text *to, float number)
{
    char digits[40];
    int precision;
    if (!isfinite(number)) {
        text_add(to, "null");
        return;
    }
    for (precision = 6; precision <= 9; precision++) {
        (void)snprintf(digits, sizeof digits, "%.*g", precision, (double)number);
        if (strtof(digits, NULL) == number) {
            break;
        }
    }
    add_number(to, digits);
}
