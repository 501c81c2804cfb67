// Three functions that verbs.h has inline and libibverbs does not export, by the function table of the device: for programs that look
// them up by name (vgwrdma 1.8.0). Preloaded, in front of dlsym.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <string.h>

struct context {
    void *device;
    void *functions[11];
    int (*poll_cq)(void *, int, void *);
    void *more[13];
    int (*post_send)(void *, void *, void *);
    int (*post_recv)(void *, void *, void *);
};

struct object {
    struct context *context;
};

static int poll_cq(struct object *queue, int count, void *out) { return queue->context->poll_cq(queue, count, out); }
static int post_send(struct object *pair, void *request, void *bad) { return pair->context->post_send(pair, request, bad); }
static int post_recv(struct object *pair, void *request, void *bad) { return pair->context->post_recv(pair, request, bad); }

void *dlsym(void *library, const char *name) {
    static void *(*next)(void *, const char *);
    if (!strcmp(name, "ibv_poll_cq")) return (void *)poll_cq;
    if (!strcmp(name, "ibv_post_send")) return (void *)post_send;
    if (!strcmp(name, "ibv_post_recv")) return (void *)post_recv;
    if (!next) {
        next = dlvsym(RTLD_NEXT, "dlsym", "GLIBC_2.34");
        if (!next) next = dlvsym(RTLD_NEXT, "dlsym", "GLIBC_2.2.5");
    }
    return next(library, name);
}
