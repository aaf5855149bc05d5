#define _DEFAULT_SOURCE
#define _POSIX_C_SOURCE 200809L

#include "saved.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#if !KDGAT_PAIR

#define EXIT_MACHINE 1
#define EXIT_INPUT 2
#define PATH_BYTES 4096u

const char *saved_problem(kdgat_status status)
{
    switch (status) {
    case KDGAT_TOO_FEW:
        return "too few windows; use longer traffic";
    case KDGAT_NOT_FINITE:
        return "the scores of its windows give no scale; use other traffic";
    case KDGAT_LENGTH:
        return "it has not the length of a calibration of this model; make one with --calibrate";
    case KDGAT_NO_CALIBRATION:
        return "it is no calibration of kdgat-car; make one with --calibrate";
    case KDGAT_OTHER_MODEL:
        return "it belongs to another model; make one for this model with --calibrate";
    case KDGAT_CHECKSUM:
        return "its checksum is wrong: the file is damaged; make a new one with --calibrate";
    case KDGAT_VALUES:
        return "a value in it is out of range; make a new one with --calibrate";
    case KDGAT_MANY_IDS:
        return "its traffic has more IDs than a calibration has room for (KDGAT_CALIBRATION_IDS)";
    case KDGAT_OK:
    case KDGAT_FULL:
        break;
    }
    return "it is fine";
}

int saved_load(kdgat_state *detector, const char *path)
{
    static uint8_t bytes[KDGAT_SAVED_BYTES + 1u];
    kdgat_status status;
    size_t length;
    int has_failed;
    FILE *const file = fopen(path, "rb");

    if (file == NULL) {
        fprintf(stderr, "error: --load %s: %s\n", path, strerror(errno));
        return EXIT_INPUT;
    }
    length = fread(bytes, 1, sizeof bytes, file);
    has_failed = ferror(file);
    (void)fclose(file);
    if (has_failed) {
        fprintf(stderr, "error: --load %s: cannot read it\n", path);
        return EXIT_INPUT;
    }
    status = kdgat_load(detector, bytes, (uint32_t)length);
    if (status != KDGAT_OK) {
        fprintf(stderr, "error: --load %s: %s\n", path, saved_problem(status));
        return EXIT_INPUT;
    }
    return 0;
}

int saved_expect_free(const char *path, int replaces)
{
    if (!replaces && access(path, F_OK) == 0) {
        fprintf(stderr, "error: --save %s: the file exists; use --replace to overwrite it\n", path);
        return EXIT_INPUT;
    }
    return 0;
}

static int failed(const char *path, int problem)
{
    fprintf(stderr, "error: --save %s: %s\n", path, strerror(problem));
    return problem == ENOSPC || problem == EDQUOT || problem == EIO ? EXIT_MACHINE : EXIT_INPUT;
}

/* Writes all bytes and brings them to the disk; returns 0 or an error of errno. */
static int write_all(int file, const uint8_t *bytes, size_t length)
{
    while (length > 0) {
        const ssize_t count = write(file, bytes, length);
        if (count < 0) {
            if (errno == EINTR) {
                continue;
            }
            return errno;
        }
        bytes += count;
        length -= (size_t)count;
    }
    return fsync(file) == 0 ? 0 : errno;
}

/* Brings the name of a file to the disk, which its folder has; returns 0 or an error of errno. */
static int sync_folder(const char *path)
{
    char folder[PATH_BYTES];
    const char *const slash = strrchr(path, '/');
    const size_t length = slash == NULL ? 0 : slash == path ? 1 : (size_t)(slash - path);
    int file, problem;

    if (length >= sizeof folder) {
        return ENAMETOOLONG;
    }
    memcpy(folder, path, length);
    folder[length] = '\0';
    file = open(length == 0 ? "." : folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (file < 0) {
        return errno;
    }
    /* EINVAL: a file system whose folders need no call. */
    problem = fsync(file) == 0 || errno == EINVAL ? 0 : errno;
    (void)close(file);
    return problem;
}

int saved_write(const kdgat_state *detector, const char *path)
{
    static uint8_t bytes[KDGAT_SAVED_BYTES];
    char beside[PATH_BYTES];
    const uint32_t length = kdgat_save(detector, bytes, sizeof bytes);
    const int written = snprintf(beside, sizeof beside, "%s.%ld.new", path, (long)getpid());
    int file, problem;

    if (written < 0 || (size_t)written >= sizeof beside) {
        return failed(path, ENAMETOOLONG);
    }
    file = open(beside, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0644);
    if (file < 0) {
        return failed(path, errno);
    }
    problem = write_all(file, bytes, length);
    if (close(file) != 0 && problem == 0) {
        problem = errno;
    }
    if (problem == 0 && rename(beside, path) != 0) {
        problem = errno;
    }
    if (problem != 0) {
        (void)unlink(beside);
        return failed(path, problem);
    }
    problem = sync_folder(path);
    return problem == 0 ? 0 : failed(path, problem);
}

#endif
