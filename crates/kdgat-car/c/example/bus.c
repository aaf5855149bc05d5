#include "bus.h"

#include <math.h>
#include <string.h>

void bus_init(bus_state *bus, double silence_seconds, double heartbeat_seconds, int is_live)
{
    memset(bus, 0, sizeof *bus);
    bus->silence_seconds = silence_seconds;
    bus->heartbeat_seconds = heartbeat_seconds;
    bus->is_live = (uint8_t)(is_live != 0);
}

static bus_event *add(const bus_state *bus, bus_kind kind, bus_events *events)
{
    bus_event *event = &events->event[events->count++];
    memset(event, 0, sizeof *event);
    event->kind = kind;
    event->has_time = bus->clock.has_last;
    event->time = bus->clock.last;
    return event;
}

static void begin_silence(bus_state *bus, bus_events *events)
{
    bus->silent = 1;
    bus->silences++;
    add(bus, BUS_SILENCE, events)->seconds = bus->silence_seconds;
}

/* A heartbeat that counts `frames` frames of the stream, if one is due; NULL if not. */
static bus_event *beat_if_due(bus_state *bus, double clock, uint64_t frames, const bus_counts *counts, bus_events *events)
{
    bus_event *event;
    if (!(bus->heartbeat_seconds > 0.0) || !(clock - bus->beat >= bus->heartbeat_seconds)) {
        return NULL;
    }
    event = add(bus, BUS_HEARTBEAT, events);
    event->frames = frames - bus->frames_at_beat;
    event->windows = counts->windows - bus->at_beat.windows;
    event->alarms = counts->alarms - bus->at_beat.alarms;
    event->suppressed = counts->suppressed - bus->at_beat.suppressed;
    event->silent = bus->silent;
    bus->beat = clock;
    bus->at_beat = *counts;
    bus->frames_at_beat = frames;
    return event;
}

void bus_frame(bus_state *bus, double time, double now, const bus_counts *counts, bus_events *events)
{
    const double gap = bus->clock.has_last && isfinite(time) ? time - bus->clock.last : 0.0;
    const int is_gap = bus->silence_seconds > 0.0 && gap > bus->silence_seconds;
    const double waited = bus->is_live ? now - bus->arrived : 0.0;

    events->count = 0;
    if (is_gap && !bus->silent) {
        begin_silence(bus, events);
    }
    bus->frames++;
    (void)alarm_clock_advance(&bus->clock, time);
    bus->arrived = bus->is_live ? now : 0.0;
    if (bus->silent) {
        bus_event *event = add(bus, BUS_SILENCE_END, events);
        event->has_time = 1;
        event->time = time;
        /* A frame that ends a silence without a gap has come on a live stream. */
        event->seconds = is_gap ? gap : waited;
        bus->silent = 0;
    }
    if (!bus->is_live) {
        (void)beat_if_due(bus, bus->clock.seconds, bus->frames - 1u, counts, events);
    }
}

void bus_tick(bus_state *bus, double now, double reject_share, const bus_counts *counts, bus_events *events)
{
    bus_event *beat;
    events->count = 0;
    if (bus->silence_seconds > 0.0 && !bus->silent && now - bus->arrived >= bus->silence_seconds) {
        begin_silence(bus, events);
    }
    beat = beat_if_due(bus, now, bus->frames, counts, events);
    if (beat != NULL) {
        beat->has_reject_share = 1;
        beat->reject_share = reject_share;
    }
}
