/* Reads a file of an NFS server by libnfs, over several contexts, each with a thread and calls of 1 MiB under way.
 *
 *   nfs_peer SERVER EXPORT FILE VERSION CONNECTIONS DEPTH ROUNDS
 *
 * Prints bytes, seconds and CPU seconds of the timed part as JSON. The bytes are copied to memory of the caller's, as nfs_pread does.
 * cc -O2 bench/nfs_peer.c -o nfs_peer -lnfs -lpthread
 */
#include <poll.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>

#include <nfsc/libnfs.h>

enum { CALL = 1 << 20 };

struct stream {
    struct nfs_context *nfs;
    struct nfsfh *file;
    char *memory;
    uint64_t start, len, next, done;
    int depth, rounds;
};

struct call {
    struct stream *stream;
    uint64_t at, len;
    struct call *free;
};

static pthread_barrier_t ready;

static void fail(const char *what, struct nfs_context *nfs)
{
    fprintf(stderr, "error: %s: %s\n", what, nfs ? nfs_get_error(nfs) : "");
    exit(1);
}

static void ask(struct stream *stream, struct call *call);

static void answered(int got, struct nfs_context *nfs, void *data, void *private)
{
    struct call *call = private;
    if (got < 0 || (uint64_t)got != call->len)
        fail("a read is short", nfs);
    memcpy(call->stream->memory + call->at, data, got);
    call->stream->done += got;
    ask(call->stream, call);
}

static void ask(struct stream *stream, struct call *call)
{
    uint64_t all = stream->len * stream->rounds;
    if (stream->next >= all)
        return;
    call->at = stream->next % stream->len;
    call->len = stream->len - call->at < CALL ? stream->len - call->at : CALL;
    stream->next += call->len;
    if (nfs_pread_async(stream->nfs, stream->file, stream->start + call->at, call->len, answered, call) != 0)
        fail("cannot read", stream->nfs);
}

static void *run(void *argument)
{
    struct stream *stream = argument;
    struct call *calls = calloc(stream->depth, sizeof *calls);
    pthread_barrier_wait(&ready);
    for (int i = 0; i < stream->depth; i++) {
        calls[i].stream = stream;
        ask(stream, &calls[i]);
    }
    while (stream->done < stream->len * stream->rounds) {
        struct pollfd polled = {.fd = nfs_get_fd(stream->nfs), .events = nfs_which_events(stream->nfs)};
        if (poll(&polled, 1, 10000) < 1 || nfs_service(stream->nfs, polled.revents) < 0)
            fail("the connection broke", stream->nfs);
    }
    free(calls);
    pthread_barrier_wait(&ready);
    return NULL;
}

static double now(clockid_t clock)
{
    struct timespec time;
    clock_gettime(clock, &time);
    return time.tv_sec + time.tv_nsec * 1e-9;
}

int main(int count, char **arguments)
{
    if (count != 8) {
        fprintf(stderr, "use: nfs_peer SERVER EXPORT FILE VERSION CONNECTIONS DEPTH ROUNDS\n");
        return 2;
    }
    int connections = atoi(arguments[5]), depth = atoi(arguments[6]), rounds = atoi(arguments[7]);
    struct stream *streams = calloc(connections, sizeof *streams);
    pthread_t *threads = calloc(connections, sizeof *threads);
    struct nfs_stat_64 stat;
    pthread_barrier_init(&ready, NULL, connections + 1);
    for (int i = 0; i < connections; i++) {
        struct stream *stream = &streams[i];
        stream->nfs = nfs_init_context();
        if (!stream->nfs)
            fail("no context", NULL);
        nfs_set_version(stream->nfs, atoi(arguments[4]));
        if (nfs_mount(stream->nfs, arguments[1], arguments[2]) != 0)
            fail("cannot mount", stream->nfs);
        if (nfs_open(stream->nfs, arguments[3], 0, &stream->file) != 0)
            fail("cannot open", stream->nfs);
        if (i == 0 && nfs_fstat64(stream->nfs, stream->file, &stat) != 0)
            fail("cannot look at the file", stream->nfs);
        stream->len = stat.nfs_size / connections / CALL * CALL;
        stream->start = i * stream->len;
        stream->memory = malloc(stream->len);
        memset(stream->memory, 0xA5, stream->len);
        stream->depth = depth;
        stream->rounds = rounds;
        pthread_create(&threads[i], NULL, run, stream);
    }
    pthread_barrier_wait(&ready);
    double wall = now(CLOCK_MONOTONIC), cpu = now(CLOCK_PROCESS_CPUTIME_ID);
    pthread_barrier_wait(&ready);
    wall = now(CLOCK_MONOTONIC) - wall;
    cpu = now(CLOCK_PROCESS_CPUTIME_ID) - cpu;
    printf("{\"bytes\": %llu, \"seconds\": %.6f, \"cpu_s\": %.6f}\n",
           (unsigned long long)(streams[0].len * connections * rounds), wall, cpu);
    return 0;
}
