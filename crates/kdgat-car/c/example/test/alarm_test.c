/* Tests of the alarm layer: the cases of kdgat's own tests (crates/kdgat-detect/src/alarm/episode.rs). */
#include "../alarm.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

static int failures;

static alarm_verdict verdict(uint64_t window, double time, int attack)
{
    alarm_verdict made;
    memset(&made, 0, sizeof made);
    made.window = window;
    made.time = time;
    made.score = attack ? 0.9 : 0.1;
    made.deviations = NAN;
    made.attack = (uint8_t)attack;
    made.num_ids = (uint8_t)attack;
    made.id[0] = 0x123;
    return made;
}

/* Windows a quarter of a second apart, `A` an attack; expected `+` at a begin, `-` at an end, `$` for an end at the end of the stream. */
static void drawn(uint32_t needed, uint32_t among, uint64_t clear, double cooldown, const char *windows, const char *expected,
                  uint64_t suppressed)
{
    alarm_rule rule;
    alarm_state state;
    alarm_event event;
    char found[64];
    size_t position, length = strlen(windows);
    rule.needed = needed;
    rule.among = among;
    rule.clear = clear;
    rule.cooldown_seconds = cooldown;
    alarm_init(&state, &rule);
    for (position = 0; position < length; position++) {
        alarm_verdict next = verdict(position, 0.25 * (double)position, windows[position] == 'A');
        alarm_push(&state, &next, &event);
        found[position] = event.kind == ALARM_BEGIN ? '+' : event.kind == ALARM_END ? '-' : '.';
    }
    alarm_finish(&state, &event);
    if (event.kind == ALARM_END) {
        found[position++] = '$';
    }
    found[position] = '\0';
    if (strcmp(found, expected) != 0 || state.suppressed != suppressed) {
        failures++;
        printf("%u/%u %s: %s, %u suppressed; expected %s\n", (unsigned)needed, (unsigned)among, windows, found,
               (unsigned)state.suppressed, expected);
    }
}

static void check(int holds, const char *what)
{
    if (!holds) {
        failures++;
        printf("failed: %s\n", what);
    }
}

static void figures(void)
{
    alarm_rule rule = {2, 3, 2, 0.0};
    alarm_state state;
    alarm_event event;
    alarm_verdict next = verdict(10, 100.0, 1);
    alarm_init(&state, &rule);
    next.score = 0.8;
    next.deviations = 7.0;
    next.severity = ALARM_HIGH;
    next.num_ids = 2;
    next.id[0] = 0x002;
    next.id[1] = 0x7DF;
    alarm_push(&state, &next, &event);
    check(event.kind == ALARM_NONE, "one of two");
    next = verdict(11, 100.25, 0);
    alarm_push(&state, &next, &event);
    next = verdict(12, 100.5, 1);
    next.deviations = 4.0;
    next.id[0] = 0x7DF;
    alarm_push(&state, &next, &event);
    check(event.kind == ALARM_BEGIN && event.alarm == 1 && event.time == 100.5 && event.since == 100.0, "begin");
    check(event.window == 12 && event.score == 0.9 && event.deviations == 4.0 && event.severity == ALARM_HIGH, "begin's window");
    check(event.attack_windows == 2 && event.num_culprits == 2, "begin's counts");
    check(event.culprit[0].id == 0x7DF && event.culprit[0].windows == 2 && event.culprit[1].id == 0x002, "begin's culprits");
    next = verdict(13, 100.75, 0);
    alarm_push(&state, &next, &event);
    next = verdict(14, 101.0, 0);
    alarm_push(&state, &next, &event);
    check(event.kind == ALARM_END && event.time == 101.0 && event.duration_seconds == 1.0 && event.windows == 5, "end");
    check(event.attack_windows == 2 && event.score == 0.9 && event.deviations == 7.0 && event.cleared == 1, "end's figures");
    alarm_finish(&state, &event);
    check(event.kind == ALARM_NONE, "nothing is open");
}

/* `.` no attack; `l`, `m`, `h` an attack of that severity that names 123, capitals one that names 456. `x` one since which 123 is gone. `s`,
 * `c` and `g` are changes. */
static void drawn_with_news(uint32_t needed, uint32_t among, double cooldown, const char *windows, const char *expected,
                            uint64_t suppressed)
{
    alarm_rule rule;
    alarm_state state;
    alarm_event event;
    char found[64];
    size_t position, length = strlen(windows);
    rule.needed = needed;
    rule.among = among;
    rule.clear = 2;
    rule.cooldown_seconds = cooldown;
    alarm_init(&state, &rule);
    for (position = 0; position < length; position++) {
        const char letter = windows[position];
        alarm_verdict next = verdict(position, 0.25 * (double)position, letter != '.');
        next.severity = letter == 'h' || letter == 'H' ? ALARM_HIGH : letter == 'm' || letter == 'M' ? ALARM_MEDIUM : ALARM_LOW;
        next.id[0] = letter >= 'A' && letter <= 'Z' ? 0x456 : 0x123;
        next.num_gone = letter == 'x';
        next.gone[0] = 0x123;
        alarm_push(&state, &next, &event);
        found[position] = event.kind == ALARM_BEGIN    ? '+'
                          : event.kind == ALARM_END    ? '-'
                          : event.kind == ALARM_NONE   ? '.'
                          : event.news == ALARM_NEW_SEVERITY ? 's'
                          : event.news == ALARM_NEW_GONE     ? 'g'
                                                             : 'c';
    }
    alarm_finish(&state, &event);
    found[position] = '\0';
    if (strcmp(found, expected) != 0 || state.suppressed != suppressed) {
        failures++;
        printf("%u/%u %s: %s, %u suppressed; expected %s\n", (unsigned)needed, (unsigned)among, windows, found,
               (unsigned)state.suppressed, expected);
    }
}

static void many_ids(void)
{
    static const uint32_t again[] = {150, 3, 3, 7};
    alarm_rule rule = {1, 1, 2, 0.0};
    alarm_state state;
    alarm_event event;
    uint32_t window;
    alarm_init(&state, &rule);
    for (window = 0; window < 204; window++) {
        alarm_verdict next = verdict(window, window, 1);
        next.id[0] = window < 200 ? window : again[window - 200];
        alarm_push(&state, &next, &event);
    }
    alarm_finish(&state, &event);
    check(event.kind == ALARM_END && event.attack_windows == 204 && event.cleared == 0, "a long episode");
    check(event.num_culprits == 5 && event.culprit[0].id == 3 && event.culprit[0].windows == 3, "most windows");
    check(event.culprit[1].id == 7 && event.culprit[2].id == 0 && event.culprit[4].id == 2, "ties in order");
}

static void bad_times(void)
{
    const double times[] = {9e9, NAN, INFINITY, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0};
    alarm_rule rule = {1, 1, 2, 5.0};
    alarm_state state;
    alarm_event event;
    uint64_t window;
    alarm_clock clock = {0.0, 0.0, 0};
    alarm_init(&state, &rule);
    for (window = 0; window < 10; window++) {
        alarm_verdict next = verdict(window, times[window], window == 0 || window > 2);
        alarm_push(&state, &next, &event);
        check(event.kind == (window == 0 || window == 8 ? ALARM_BEGIN : window == 2 ? ALARM_END : ALARM_NONE), "bad times");
    }
    alarm_clock_advance(&clock, -1.7e308);
    check(alarm_clock_advance(&clock, 1.7e308) == ALARM_LONGEST_STEP_SECONDS, "a step counts at most a day");
}

int main(void)
{
    drawn(1, 1, 2, 0.0, "..AA.A..A.", "..+....-+.$", 0);
    drawn(2, 2, 2, 0.0, "..A.AA....", ".....+.-..", 0);
    drawn(2, 3, 2, 0.0, "A..A.A..AA", ".....+.-.+$", 0);
    drawn(3, 10, 2, 0.0, "AAA..A....AA", "..+.-......+$", 0);
    drawn(1, 1, 2, 2.0, "A...A.......A", "+.-.........+$", 1);
    drawn(1, 1, 2, 2.0, "A..AAAAAAAAA..", "+.-.......+..-", 0);
    drawn(1, 1, 2, 2.0, "A..A", "+.-.", 1);
    drawn(1, 1, 2, 1e9, "A..A..A..A.A", "+.-.........", 3);
    drawn_with_news(1, 1, 100.0, "l..l...h..", "+.-....+.-", 1);
    drawn_with_news(1, 1, 100.0, "h..l...LLL..", "+.-......+.-", 1);
    drawn_with_news(1, 1, 100.0, "l..lL.L..", "+.-......", 1);
    drawn_with_news(1, 1, 100.0, "lLLL..l.L..h", "+..c.-.....+", 1);
    drawn_with_news(2, 3, 100.0, "ll..lh..lhh..", ".+.-......+.-", 1);
    drawn_with_news(2, 3, 100.0, "ll..LLL..", ".+.-..+.-", 0);
    drawn_with_news(1, 1, 0.0, "llmmhhLLLhL..", "+.s.s...c...-", 0);
    drawn_with_news(2, 4, 0.0, "lllhllhhLlLL..", ".+....s....c.-", 0);
    drawn_with_news(3, 5, 100.0, "..x......x..", "..+.-....+.-", 0);
    drawn_with_news(3, 5, 100.0, "lll..lll..x..", "..+.-.....+.-", 1);
    drawn_with_news(3, 5, 100.0, "lllxlxl...", "..+g.g..-.", 0);
    figures();
    many_ids();
    bad_times();
    printf(failures == 0 ? "ok\n" : "failed\n");
    return failures == 0 ? 0 : 1;
}
