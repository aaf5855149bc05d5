/* Calibrations as files. */
#ifndef KDGAT_SAVED_H
#define KDGAT_SAVED_H

#include "kdgat_car.h"

/* Two models together have no calibration in C. */
#if !KDGAT_PAIR
#include "kdgat_calibrate.h"

/* Loads a calibration. Returns 0, or after a message to standard error the exit code. */
int saved_load(kdgat_state *detector, const char *path);

/* Refuses to overwrite a file; as saved_load. */
int saved_expect_free(const char *path, int replaces);

/* Saves the detector's calibration: beside the file, then renamed, so that there is never half a file; as saved_load. */
int saved_write(const kdgat_state *detector, const char *path);

/* A sentence about a calibration that failed. */
const char *saved_problem(kdgat_status status);
#endif

#endif
