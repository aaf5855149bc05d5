/* Silence and heartbeat of a bus, from the times of its frames and, on a live stream, from the machine's clock.
 *
 * The rules are those of kdgat's src/detect/alarm/bus.rs:
 * - two successive frames more than the limit apart are a silence at the first, and its end at the second;
 * - a live stream without a frame for the limit, by the machine's clock, is silent at once; its next frame ends the silence;
 * - a heartbeat comes when its period has passed since the last one: by the machine's clock on a live stream, otherwise by the times
 *   of the frames. It counts what came before the frame that caused it. */
#ifndef KDGAT_BUS_H
#define KDGAT_BUS_H

#include <stdint.h>

#include "alarm.h"

#define BUS_MOST_EVENTS 3 /* events of one frame or one tick */

typedef enum bus_kind { BUS_SILENCE, BUS_SILENCE_END, BUS_HEARTBEAT } bus_kind;

typedef struct bus_event {
    bus_kind kind;
    uint8_t has_time; /* 0: no frame has come yet */
    double time;
    double seconds;   /* silence: the limit; silence-end: time without a frame */
    uint64_t frames;  /* heartbeat: since the last one */
    uint64_t windows;
    uint64_t alarms;
    uint64_t suppressed;
    uint8_t silent;
    uint8_t has_reject_share; /* on a live stream */
    double reject_share; /* of its last lines, from 0 to 1 */
} bus_event;

typedef struct bus_events {
    uint32_t count;
    bus_event event[BUS_MOST_EVENTS];
} bus_events;

/* Counts of the whole stream, from which heartbeats take differences. */
typedef struct bus_counts {
    uint64_t windows;
    uint64_t alarms;
    uint64_t suppressed;
} bus_counts;

/* Contents are private, but for the counts of silences. */
typedef struct bus_state {
    double silence_seconds;   /* 0: no silences */
    double heartbeat_seconds; /* 0: no heartbeats */
    uint8_t is_live;
    alarm_clock clock;
    uint64_t frames;
    double arrived; /* machine's clock at the last frame, or 0 for the start */
    uint8_t silent;
    uint64_t silences;
    double beat; /* clock and counts at the last heartbeat */
    bus_counts at_beat;
    uint64_t frames_at_beat;
} bus_state;

/* is_live: the machine's clock decides beside the times of the frames. */
void bus_init(bus_state *bus, double silence_seconds, double heartbeat_seconds, int is_live);

/* Takes a frame. now is the machine's clock in seconds since the start, and is not read for a log. counts are those of the frames
 * before it. */
void bus_frame(bus_state *bus, double time, double now, const bus_counts *counts, bus_events *events);

/* Takes the machine's clock of a live stream, and the share of its last lines that could not be read. */
void bus_tick(bus_state *bus, double now, double reject_share, const bus_counts *counts, bus_events *events);

#endif
