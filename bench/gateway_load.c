/* What bench/gateway.py loads S3 servers with, and the bare server beside them. Heads are signed before: nothing is computed here.
 *
 *   gateway_load ask PORT CONNECTIONS THREADS BODY < HEADS    sends each head once, with BODY (a file, or -); prints JSON
 *   gateway_load hold PORT IDLE SLOW < HEADS                  opens connections: idle ones, after an answer to the first head, and
 *                                                             readers of a byte a second of the second; prints a line, and goes on
 *                                                             until it is killed
 *   gateway_load bare PORT FILE sendfile|send                 serves FILE, whole or a range, to any GET
 *   gateway_load bare PORT FILE put                           writes the body of any PUT into a new file, and puts that in the place of FILE.put
 *   gateway_load crc FILE                                     its CRC-64/NVME in base64
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/tcp.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/sendfile.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

enum { ROOM = 256 << 10, PIECE = 256 << 10 };

static char *heads;
static size_t *begins, count;
static char *body;
static size_t body_len;
static int port, connections, threads;
static atomic_size_t next_head, bytes;
static double *waits;

static void die(const char *what) {
    fprintf(stderr, "gateway_load: %s: %s\n", what, strerror(errno));
    exit(1);
}

static double now(clockid_t clock) {
    struct timespec time;
    clock_gettime(clock, &time);
    return (double)time.tv_sec + (double)time.tv_nsec / 1e9;
}

static char *whole(int fd, size_t *len) {
    size_t room = 1 << 20, have = 0;
    char *text = malloc(room + 1);
    for (ssize_t got; (got = read(fd, text + have, room - have)) != 0;) {
        if (got < 0) die("cannot read");
        have += (size_t)got;
        if (have == room) text = realloc(text, (room *= 2) + 1);
    }
    text[have] = 0;
    *len = have;
    return text;
}

static void read_heads(void) {
    size_t len;
    heads = whole(0, &len);
    begins = malloc(sizeof *begins * (len / 16 + 2));
    for (char *at = heads, *end; (end = strstr(at, "\r\n\r\n")); at = end + 4) begins[count++] = (size_t)(at - heads);
    begins[count] = len;
}

static int connect_to(void) {
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0), one = 1;
    struct sockaddr_in to = {.sin_family = AF_INET, .sin_port = htons((uint16_t)port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    if (fd < 0 || connect(fd, (struct sockaddr *)&to, sizeof to)) die("cannot connect");
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    return fd;
}

static void send_all(int fd, const char *from, size_t len, int flags) {
    for (ssize_t sent; len > 0; from += sent, len -= (size_t)sent)
        if ((sent = send(fd, from, len, flags | MSG_NOSIGNAL)) < 0) die("cannot send");
}

static void ask(int fd, size_t which) {
    size_t len = begins[which + 1] - begins[which];
    send_all(fd, heads + begins[which], len, body_len ? MSG_MORE : 0);
    if (body_len) send_all(fd, body, body_len, 0);
}

/* Reads a reply, whose length its head says. */
static void receive(int fd, char *room) {
    size_t have = 0;
    char *end = NULL;
    while (!end) {
        ssize_t got = recv(fd, room + have, ROOM - have, 0);
        if (got <= 0) die("the head of a reply ends early");
        have += (size_t)got;
        end = memmem(room, have, "\r\n\r\n", 4);
    }
    end[2] = 0;
    if (strncmp(room, "HTTP/1.1 2", 10)) {
        fprintf(stderr, "%s%.*s\n", room, (int)(room + have - end - 4), end + 4);
        exit(1);
    }
    char *said = strcasestr(room, "\r\ncontent-length:");
    int is_chunked = strcasestr(room, "\r\ntransfer-encoding:") != NULL;
    size_t had = have - (size_t)(end + 4 - room);
    atomic_fetch_add(&bytes, had);
    /* Of a listing: the last chunk is empty. */
    for (char tail[5] = {0}; is_chunked;) {
        size_t some = had < 5 ? had : 5;
        memmove(tail, tail + some, 5 - some);
        memcpy(tail + 5 - some, room + have - some, some);
        if (!memcmp(tail, "0\r\n\r\n", 5)) return;
        ssize_t got = recv(fd, room, ROOM, 0);
        if (got <= 0) die("a reply ends early");
        have = had = (size_t)got;
        atomic_fetch_add(&bytes, had);
    }
    size_t left = (said ? strtoull(said + 17, NULL, 10) : 0) - had;
    while (left > 0) {
        ssize_t got = recv(fd, room, left < ROOM ? left : ROOM, 0);
        if (got <= 0) die("a reply ends early");
        left -= (size_t)got;
        atomic_fetch_add(&bytes, (size_t)got);
    }
}

/* A thread's connections are asked at once, and read in turns. */
static void *work(void *unused) {
    int mine = connections / threads, fd[mine];
    size_t asked[mine];
    double began[mine];
    char *room = malloc(ROOM);
    int open = 0;
    for (int each = 0; each < mine; each++, open++) {
        if ((asked[each] = atomic_fetch_add(&next_head, 1)) >= count) break;
        fd[each] = connect_to();
        began[each] = now(CLOCK_MONOTONIC);
        ask(fd[each], asked[each]);
    }
    for (int left = open; left > 0;)
        for (int each = 0; each < open; each++) {
            if (fd[each] < 0) continue;
            receive(fd[each], room);
            waits[asked[each]] = now(CLOCK_MONOTONIC) - began[each];
            if ((asked[each] = atomic_fetch_add(&next_head, 1)) < count) {
                began[each] = now(CLOCK_MONOTONIC);
                ask(fd[each], asked[each]);
            } else {
                close(fd[each]);
                fd[each] = -1;
                left--;
            }
        }
    free(room);
    return unused;
}

static int by_size(const void *left, const void *right) {
    double difference = *(const double *)left - *(const double *)right;
    return (difference > 0) - (difference < 0);
}

static void load(const char *from) {
    if (strcmp(from, "-")) {
        int fd = open(from, O_RDONLY);
        if (fd < 0) die(from);
        body = whole(fd, &body_len);
    }
    read_heads();
    waits = calloc(count, sizeof *waits);
    pthread_t thread[threads];
    double began = now(CLOCK_MONOTONIC), cpu = now(CLOCK_PROCESS_CPUTIME_ID);
    for (int each = 0; each < threads; each++) pthread_create(&thread[each], NULL, work, NULL);
    for (int each = 0; each < threads; each++) pthread_join(thread[each], NULL);
    double seconds = now(CLOCK_MONOTONIC) - began;
    cpu = now(CLOCK_PROCESS_CPUTIME_ID) - cpu;
    qsort(waits, count, sizeof *waits, by_size);
    printf("{\"count\": %zu, \"received\": %zu, \"sent\": %zu, \"seconds\": %.6f, \"cpu_s\": %.6f, \"p50\": %.6f, \"p99\": %.6f}\n",
           count, atomic_load(&bytes), count * body_len, seconds, cpu, waits[count / 2], waits[count * 99 / 100]);
}

static void hold(int idle, int slow) {
    struct rlimit limit;
    getrlimit(RLIMIT_NOFILE, &limit);
    limit.rlim_cur = limit.rlim_max;
    setrlimit(RLIMIT_NOFILE, &limit);
    read_heads();
    int fd[slow + 1];
    char *room = malloc(ROOM);
    for (int each = 0; each < idle; each++) {
        int to = connect_to();
        ask(to, 0);
        receive(to, room);
    }
    free(room);
    for (int each = 0, small = 4096; each < slow; each++) {
        fd[each] = connect_to();
        setsockopt(fd[each], SOL_SOCKET, SO_RCVBUF, &small, sizeof small);
        ask(fd[each], 1);
    }
    printf("ready\n");
    fflush(stdout);
    for (char byte;; sleep(1))
        for (int each = 0; each < slow; each++)
            if (recv(fd[each], &byte, 1, 0) <= 0) die("a slow reader was cut off");
}

/* ---- the bare server ---- */

static int file, is_sendfile, is_put;
static off_t file_len;
static char put_name[4096];

/* The body of a PUT, of which this much came with the head. No checksum is made. */
static int put(int from, char *room, size_t have, size_t len) {
    char new[sizeof put_name + 32];
    sprintf(new, "%s.%d", put_name, from);
    int to = open(new, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
    if (to < 0) die(new);
    for (;;) {
        if (have > 0 && write(to, room, have) != (ssize_t)have) die("cannot write");
        if ((len -= have) == 0) break;
        /* As much as the file's pages are made for at once. */
        size_t room_left = len < ROOM ? len : ROOM;
        for (have = 0; have < room_left;) {
            ssize_t got = recv(from, room + have, room_left - have, 0);
            if (got <= 0) return -1;
            have += (size_t)got;
        }
    }
    close(to);
    if (rename(new, put_name)) die(new);
    const char reply[] = "HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n";
    send_all(from, reply, sizeof reply - 1, 0);
    return 0;
}

static void *answer(void *given) {
    int to = (int)(intptr_t)given;
    char *room = malloc(PIECE), head[16384];
    size_t have = 0;
    for (;;) {
        char *end;
        while (!(end = memmem(head, have, "\r\n\r\n", 4))) {
            ssize_t got = recv(to, head + have, sizeof head - 1 - have, 0);
            if (got <= 0) goto out;
            have += (size_t)got;
        }
        head[end - head + 3] = 0;
        if (is_put) {
            char *said = strcasestr(head, "\r\ncontent-length:");
            size_t len = said ? strtoull(said + 17, NULL, 10) : 0, came = have - (size_t)(end + 4 - head);
            memcpy(room, end + 4, came);
            if (put(to, room, came, len)) goto out;
            have = 0;
            continue;
        }
        long long at = 0, last = file_len - 1;
        char *range = strcasestr(head, "\r\nrange: bytes="), reply[128];
        if (range) sscanf(range + 15, "%lld-%lld", &at, &last);
        int len = sprintf(reply, "HTTP/1.1 %s\r\ncontent-length: %lld\r\n\r\n", range ? "206 P" : "200 OK", last + 1 - at);
        send_all(to, reply, (size_t)len, MSG_MORE);
        while (at <= last) {
            off_t from = at;
            ssize_t sent = is_sendfile ? sendfile(to, file, &from, (size_t)(last + 1 - at))
                                       : pread(file, room, (size_t)(last + 1 - at < PIECE ? last + 1 - at : PIECE), at);
            if (sent <= 0) goto out;
            if (!is_sendfile) send_all(to, room, (size_t)sent, 0);
            at += sent;
        }
        have -= (size_t)(end + 4 - head);
        memmove(head, end + 4, have);
    }
out:
    free(room);
    close(to);
    return NULL;
}

static void bare(const char *path) {
    int on = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0), one = 1;
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_port = htons((uint16_t)port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    struct stat stat;
    setsockopt(on, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
    if ((file = open(path, O_RDONLY)) < 0 || fstat(file, &stat)) die(path);
    file_len = stat.st_size;
    if (bind(on, (struct sockaddr *)&at, sizeof at) || listen(on, 128)) die("cannot listen");
    for (;;) {
        int to = accept(on, NULL, NULL);
        pthread_t thread;
        setsockopt(to, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
        pthread_create(&thread, NULL, answer, (void *)(intptr_t)to);
        pthread_detach(thread);
    }
}

static void print_crc(const char *path) {
    static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    uint64_t table[256], sum = ~0ull;
    for (uint64_t each = 0; each < 256; each++) {
        table[each] = each;
        for (int bit = 0; bit < 8; bit++) table[each] = table[each] & 1 ? table[each] >> 1 ^ 0x9A6C9329AC4BC9B5ull : table[each] >> 1;
    }
    int fd = open(path, O_RDONLY);
    if (fd < 0) die(path);
    size_t len;
    char *text = whole(fd, &len);
    for (size_t at = 0; at < len; at++) sum = table[(sum ^ (uint8_t)text[at]) & 255] ^ sum >> 8;
    sum = ~sum;
    for (int shift = 58; shift > 0; shift -= 6) putchar(digits[sum >> shift & 63]);
    printf("%c=\n", digits[sum << 2 & 63]);
}

int main(int argc, char **argv) {
    if (argc > 2) port = atoi(argv[2]);
    if (argc == 6 && !strcmp(argv[1], "ask")) {
        connections = atoi(argv[3]);
        threads = atoi(argv[4]);
        load(argv[5]);
    } else if (argc == 5 && !strcmp(argv[1], "hold")) {
        hold(atoi(argv[3]), atoi(argv[4]));
    } else if (argc == 5 && !strcmp(argv[1], "bare")) {
        is_sendfile = !strcmp(argv[4], "sendfile");
        is_put = !strcmp(argv[4], "put");
        snprintf(put_name, sizeof put_name, "%s.put", argv[3]);
        bare(argv[3]);
    } else if (argc == 3 && !strcmp(argv[1], "crc")) {
        print_crc(argv[2]);
    } else {
        fputs("use: gateway_load ask|hold|bare|crc …: see the head of its source\n", stderr);
        return 2;
    }
    return 0;
}
