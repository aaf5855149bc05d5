/* Profile of a car: what each ID usually does. Models of the profile set read deviations from it. Empty for the other feature sets. */
#ifndef KDGAT_PROFILE_H
#define KDGAT_PROFILE_H

#include "kdgat_internal.h"

#if KDGAT_FEATURES == KDGAT_FEATURES_PROFILE

#define KDGAT_PROFILE_BYTES 8u

/* What is usual for one ID. */
typedef struct {
    uint32_t id;
    float gaps;          /* number of gaps that it was learned from */
    float gap_low;       /* 0.1 % quantile of the gaps, in seconds */
    float gap_median;
    float gap_mean;
    float gap_high;      /* 99.9 % quantile */
    float watched;       /* seconds that it was watched for, without pauses of the logs; 0 if it is not known */
    float longest_silence; /* longest gap without pauses, or a longer one until the end of a log; 0 if it is not known */
    float repeats;       /* share of the frames that repeat the previous payload */
    float returns;       /* share of the frames that return to the payload before the previous one */
    float changed_bytes; /* mean number of bytes that change from one frame to the next */
    uint8_t change_high[KDGAT_PROFILE_BYTES];  /* 99.99 % quantile of the change of each byte */
    uint8_t change_most[KDGAT_PROFILE_BYTES];  /* largest change of each byte */
    uint8_t longest_standstill; /* most frames in a row that repeated the payload before them; 255 for more */
    uint8_t repeating;          /* bit n: byte n repeated its value; the others changed in every frame */
    uint8_t seen[KDGAT_PROFILE_BYTES][32];     /* bit v % 8 of seen[byte][v / 8]: the byte had the value v */
} kdgat_usual;

/* A signal that another one follows from. A place is the byte of the higher value (0xff: none) and that of the lower one. */
typedef struct {
    uint32_t id;
    uint8_t place[2];
    float least; /* range of the signal's means */
    float most;
    float slope;
    float offset;
    float error; /* usual residual */
} kdgat_partner;

/* A signal that follows from those of other IDs. */
typedef struct {
    uint32_t id;
    uint8_t place[2];
    uint8_t num_partners;
    uint32_t first_partner;
    float least;
    float most;
    float usual; /* residual, in units of the usual one, that one of a thousand attack-free windows exceeds */
} kdgat_relation;

/* A car's profile. */
typedef struct {
    const kdgat_usual *ids; /* ascending */
    uint32_t num_ids;
    float new_id_surprise; /* -ln P(the next frame has an ID that the profile does not have) */
    int counts_bytes;      /* 0: values and changes of bytes are no deviations */
} kdgat_profile;

struct kdgat_calibration_state;
/* The profile in use: the calibrated car's, or the model's (kdgat_profile.c). */
kdgat_profile kdgat_profile_of(const struct kdgat_calibration_state *car);

/* IDs of the model's own profile (generated, kdgat_tables.c). */
extern const kdgat_usual kdgat_profile_ids[];
/* Its relations, ascending by ID, and their partners. A calibrated car has none. */
extern const kdgat_relation kdgat_relations[];
extern const kdgat_partner kdgat_partners[];

#endif

#endif
