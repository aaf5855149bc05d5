/* Tests of the numbers of JSON lines. */
#include "../text.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

static int failures;

static void check(const text *found, const char *expected)
{
    if (strcmp(found->bytes, expected) != 0 || found->length != strlen(expected)) {
        failures++;
        printf("%s; expected %s\n", found->bytes, expected);
    }
}

int main(void)
{
    static const struct {
        double number;
        const char *expected;
    } doubles[] = {{0.0, "0.0"},
                   {-1.0, "-1.0"},
                   {0.1, "0.1"},
                   {1436509052.249713, "1436509052.249713"},
                   {0.1 + 0.2, "0.30000000000000004"},
                   {1e300, "1e+300"},
                   {5e-324, "4.94065645841247e-324"},
                   {INFINITY, "null"},
                   {NAN, "null"}};
    char bytes[64], small[4];
    size_t at;
    text made;
    for (at = 0; at < sizeof doubles / sizeof doubles[0]; at++) {
        made = text_in(bytes, sizeof bytes);
        text_double(&made, doubles[at].number);
        check(&made, doubles[at].expected);
    }
    made = text_in(bytes, sizeof bytes);
    text_float(&made, 0.1f);
    text_add(&made, " ");
    text_float(&made, 16777216.0f);
    text_add(&made, " ");
    text_id(&made, 0x1f);
    text_add(&made, " ");
    text_id(&made, 0x18fef100u);
    text_add(&made, " ");
    text_count(&made, UINT64_MAX);
    check(&made, "0.1 16777216.0 01F 18FEF100 18446744073709551615");
    made = text_in(small, sizeof small);
    text_add(&made, "abcdef");
    text_add(&made, "g");
    check(&made, "abc");
    printf(failures == 0 ? "ok\n" : "failed\n");
    return failures == 0 ? 0 : 1;
}
