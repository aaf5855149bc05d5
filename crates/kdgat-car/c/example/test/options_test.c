/* Tests of durations on the command line; tests/car/car_program.rs of kdgat tests the rest. */
#include "../options.h"

#include <math.h>
#include <stdio.h>

int main(void)
{
    static const struct {
        const char *text;
        double seconds; /* below 0: refused */
    } cases[] = {{"500ms", 0.5},  {"10s", 10.0}, {"0.5s", 0.5},   {"1.5min", 90.0}, {"24h", 86400.0}, {"0s", 0.0},
                 {"", -1.0},      {"10", -1.0},  {"s", -1.0},     {"-1s", -1.0},    {"+1s", -1.0},    {"1e3s", -1.0},
                 {"1m", -1.0},    {"10S", -1.0}, {"25h", -1.0},   {"nans", -1.0},   {"1.2.3s", -1.0}, {"1s1s", -1.0},
                 {"1 s", -1.0},   {".s", -1.0},  {"11111111111111111111111111111111111111111s", -1.0}};
    int failures = 0;
    size_t at;
    for (at = 0; at < sizeof cases / sizeof cases[0]; at++) {
        double seconds = -1.0;
        const int holds = options_duration(cases[at].text, &seconds);
        if (holds != (cases[at].seconds >= 0.0) || (holds && fabs(seconds - cases[at].seconds) > 1e-9)) {
            failures++;
            printf("%s: %g\n", cases[at].text, seconds);
        }
    }
    printf(failures == 0 ? "ok\n" : "failed\n");
    return failures == 0 ? 0 : 1;
}
