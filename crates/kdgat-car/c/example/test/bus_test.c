/* Tests of silence and heartbeat: the cases of kdgat's own tests (src/detect/alarm/bus.rs). */
#include "../bus.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

static int failures;
static const bus_counts nothing = {0, 0, 0};

static void check(int holds, const char *what)
{
    if (!holds) {
        failures++;
        printf("failed: %s\n", what);
    }
}

/* Events of a log: `s` silence, `e` its end, `h` heartbeat; `.` for a frame without events. */
static void of_log(double silence, double heartbeat, const double *times, size_t count, const char *expected)
{
    char drawn[64];
    size_t at, length = 0;
    bus_state bus;
    bus_events events;
    bus_init(&bus, silence, heartbeat, 0);
    for (at = 0; at < count; at++) {
        uint32_t event;
        bus_frame(&bus, times[at], 0.0, &nothing, &events);
        for (event = 0; event < events.count; event++) {
            drawn[length++] = "seh"[events.event[event].kind];
        }
        if (events.count == 0) {
            drawn[length++] = '.';
        }
    }
    drawn[length] = '\0';
    if (strcmp(drawn, expected) != 0) {
        failures++;
        printf("%s; expected %s\n", drawn, expected);
    }
}

static void logs(void)
{
    const double gaps[] = {7.0, 7.5, 8.25, 8.0, 8.5, NAN, INFINITY, 8.75, 9.5}, jump[] = {1.0, 100.0, 2.0};
    const double beats[] = {1000.0, 1005.0, 1009.9, 1010.0, 1012.0, 5000.0, 5001.0, 5010.0}, both[] = {1.0, 20.0};
    of_log(0.5, 10.0, gaps, 9, "..se.....se");
    of_log(0.0, 0.0, jump, 3, "...");
    of_log(0.0, 10.0, beats, 8, "...h.h.h");
    of_log(0.5, 10.0, both, 2, ".seh");
}

static void figures_of_a_log(void)
{
    bus_state bus;
    bus_events events;
    const bus_counts counts = {7, 2, 1};
    bus_init(&bus, 0.5, 2.0, 0);
    bus_frame(&bus, 7.5, 0.0, &nothing, &events);
    bus_frame(&bus, 8.25, 0.0, &nothing, &events);
    check(events.count == 2 && events.event[0].time == 7.5 && events.event[0].seconds == 0.5, "a silence begins at the last frame");
    check(events.event[1].time == 8.25 && events.event[1].seconds == 0.75, "a silence ends at the next frame");
    bus_frame(&bus, 9.5, 0.0, &counts, &events);
    check(events.count == 3 && events.event[2].kind == BUS_HEARTBEAT, "a heartbeat after the end of a silence");
    check(events.event[2].frames == 2 && events.event[2].windows == 7 && events.event[2].alarms == 2 && events.event[2].suppressed == 1, "what came before the frame");
    check(!events.event[2].has_reject_share, "a log has no share of bad lines in its heartbeat");
    check(!events.event[2].silent && bus.silences == 2 && !bus.silent, "the silence is over");
}

static void a_live_bus(void)
{
    bus_state bus;
    bus_events events;
    const bus_counts counts = {5, 1, 3};
    bus_init(&bus, 0.5, 10.0, 1);
    bus_tick(&bus, 0.4, 0.25, &nothing, &events);
    check(events.count == 0, "not silent yet");
    bus_tick(&bus, 0.5, 0.25, &nothing, &events);
    check(events.count == 1 && events.event[0].kind == BUS_SILENCE && !events.event[0].has_time, "no frame has come at all");
    bus_tick(&bus, 0.6, 0.25, &nothing, &events);
    check(events.count == 0, "a silence begins once");
    bus_frame(&bus, 100.0, 0.7, &nothing, &events);
    check(events.count == 1 && events.event[0].time == 100.0 && fabs(events.event[0].seconds - 0.7) < 1e-9, "by the machine's clock");
    bus_frame(&bus, 100.1, 0.7, &nothing, &events);
    bus_tick(&bus, 1.25, 0.25, &nothing, &events);
    check(events.count == 1 && events.event[0].has_time && events.event[0].time == 100.1, "the second silence");
    bus_tick(&bus, 10.0, 0.25, &counts, &events);
    check(events.count == 1 && events.event[0].frames == 2 && events.event[0].windows == 5 && events.event[0].silent, "heartbeat");
    check(events.event[0].has_reject_share && events.event[0].reject_share == 0.25, "a live stream has one");
    bus_tick(&bus, 19.9, 0.25, &counts, &events);
    check(events.count == 0, "no heartbeat yet");
    bus_frame(&bus, 103.1, 20.0, &counts, &events);
    check(events.count == 1 && fabs(events.event[0].seconds - 3.0) < 1e-9, "by the times of the frames, if they are apart");
}

int main(void)
{
    logs();
    figures_of_a_log();
    a_live_bus();
    printf(failures == 0 ? "ok\n" : "failed\n");
    return failures == 0 ? 0 : 1;
}
