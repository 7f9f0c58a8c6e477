/* Everburn's peer in `cargo xtask bench collectives --against mpi`: the all-reduce of an MPI, one process per rank.
 *
 * Each line of rank 0's input is an order, a JSON object with `bytes`, `warm_up` and `repeats`. Rank 0 hands it on and
 * answers with `times_us`, the microseconds of each call. The end of the input is the end of the processes.
 *
 * What is timed is what Everburn's side times: the blocking call, in place, on 32-bit floats, after a warm-up and a
 * barrier, by rank 0's clock. While others are measured, no rank spins: rank 0 reads, the others look for an order now
 * and then.
 */

#include <mpi.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#ifdef __linux__
#include <sys/prctl.h>
#endif
#include <time.h>

enum { LONGEST_LINE = 4096 };

/* How long a rank sleeps between two looks for an order, in nanoseconds: so seldom that it costs no other side a thousandth
 * of a core. */
enum { PAUSE = 20 * 1000 * 1000 };

struct order {
    long long bytes, warm_up, repeats;
    int is_end;
};

static void fail(const char *what) {
    fprintf(stderr, "%s\n", what);
    MPI_Abort(MPI_COMM_WORLD, 1);
}

/* The number after `"name":` in a line of JSON. */
static long long number(const char *line, const char *name) {
    char key[32];
    snprintf(key, sizeof key, "\"%s\":", name);
    const char *at = strstr(line, key);
    if (at == NULL) {
        fprintf(stderr, "the order has no \"%s\": %s", name, line);
        MPI_Abort(MPI_COMM_WORLD, 1);
        return 0;
    }
    return strtoll(at + strlen(key), NULL, 10);
}

static struct order read_order(void) {
    char line[LONGEST_LINE];
    struct order order = {0, 0, 0, 1};
    if (fgets(line, sizeof line, stdin) != NULL) {
        order.bytes = number(line, "bytes");
        order.warm_up = number(line, "warm_up");
        order.repeats = number(line, "repeats");
        order.is_end = 0;
    }
    return order;
}

/* The next order on every rank. MPI's own wait would spin, and take the cores of those who are measured meanwhile. */
static struct order next_order(int rank) {
    struct order order;
    const struct timespec pause = {0, PAUSE};
    MPI_Request request;
    int is_there = 0;
    if (rank == 0) {
        order = read_order();
    }
    MPI_Ibcast(&order, sizeof order, MPI_BYTE, 0, MPI_COMM_WORLD, &request);
    MPI_Test(&request, &is_there, MPI_STATUS_IGNORE);
    while (!is_there) {
        nanosleep(&pause, NULL);
        MPI_Test(&request, &is_there, MPI_STATUS_IGNORE);
    }
    return order;
}

static void all_reduce(float *values, int count) {
    if (MPI_Allreduce(MPI_IN_PLACE, values, count, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD) != MPI_SUCCESS) {
        fail("MPI_Allreduce has failed");
    }
}

static void measure(int rank, int ranks, struct order order) {
    const int count = (int)(order.bytes / (long long)sizeof(float));
    const float expected = (float)ranks * (float)(ranks + 1) / 2.0f;
    float *values = malloc((size_t)count * sizeof(float));
    double *times = malloc((size_t)order.repeats * sizeof(double));
    if (values == NULL || times == NULL) {
        fail("there is no memory for the message");
        return;
    }
    for (int i = 0; i < count; i++) {
        values[i] = (float)rank + 1.0f;
    }
    all_reduce(values, count);
    /* A sum that is wrong may be fast. */
    for (int i = 0; i < count; i++) {
        if (values[i] != expected) {
            fail("MPI's sum is wrong");
        }
    }
    /* Sums of zeros stay what they are; anything else would end at infinity. */
    memset(values, 0, (size_t)count * sizeof(float));
    for (long long i = 0; i < order.warm_up; i++) {
        all_reduce(values, count);
    }
    MPI_Barrier(MPI_COMM_WORLD);
    for (long long i = 0; i < order.repeats; i++) {
        const double start = MPI_Wtime();
        all_reduce(values, count);
        times[i] = (MPI_Wtime() - start) * 1e6;
    }
    if (rank == 0) {
        printf("{\"times_us\": [");
        for (long long i = 0; i < order.repeats; i++) {
            printf("%s%.3f", i == 0 ? "" : ", ", times[i]);
        }
        printf("]}\n");
        fflush(stdout);
    }
    free(times);
    free(values);
}

/* The version, up to what follows it. */
static void print_version(void) {
    char text[MPI_MAX_LIBRARY_VERSION_STRING];
    int length;
    MPI_Get_library_version(text, &length);
    printf("%.*s\n", (int)strcspn(text, ",\n"), text);
}

int main(int argc, char **argv) {
    int rank, ranks;
    MPI_Init(&argc, &argv);
#ifdef __linux__
    /* `mpirun` may be killed, and its ranks have process groups of their own. */
    prctl(PR_SET_PDEATHSIG, SIGKILL);
#endif
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    if (argc > 1 && strcmp(argv[1], "--version") == 0) {
        if (rank == 0) {
            print_version();
        }
    } else {
        struct order order = next_order(rank);
        while (!order.is_end) {
            measure(rank, ranks, order);
            order = next_order(rank);
        }
    }
    MPI_Finalize();
    return 0;
}
