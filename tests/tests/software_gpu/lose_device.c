/* A Vulkan layer whose device fails: the first process that hands in a submission when LOSE_DEVICE_WHEN is there, and finds
 * no file LOSE_DEVICE_ONCE yet, makes that file, and has VK_ERROR_DEVICE_LOST as the answer to that submission and to all
 * after it.
 *
 * The declarations are those of vulkan.h and vk_layer.h, as far as they are needed: the headers are a package of their own. */

#include <fcntl.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define EXPORTED __attribute__((visibility("default")))

enum { SUCCESS = 0, INITIALIZATION_FAILED = -3, DEVICE_LOST = -4 };
enum { LOADER_INSTANCE = 47, LOADER_DEVICE = 48, LINK = 0 };

typedef void (*Function)(void);
typedef Function (*Find)(void *handle, const char *name);

/* VkLayerInstanceLink, and VkLayerDeviceLink, whose second function is the one for devices. */
struct link {
    struct link *next;
    Find find_instance;
    Find find_device;
};

/* VkLayerInstanceCreateInfo and VkLayerDeviceCreateInfo. */
struct loader_info {
    int type;
    const void *next;
    int function;
    struct link *link;
};

/* What VkInstanceCreateInfo and VkDeviceCreateInfo begin with. */
struct create_info {
    int type;
    const void *next;
};

/* VkNegotiateLayerInterface. */
struct interface {
    int type;
    void *next;
    uint32_t version;
    Find find_instance;
    Find find_device;
    Find find_physical_device;
};

typedef int (*CreateInstance)(const struct create_info *, const void *, void **);
typedef int (*CreateDevice)(void *, const struct create_info *, const void *, void **);
typedef int (*Submit)(void *, uint32_t, const void *, uint64_t);

static Find next_of_instance;
static Find next_of_device;
static void *instance;
static Submit next_submit;
static Submit next_submit2;
static Submit next_submit2_khr;
static atomic_bool lost;

static int is_lost(void) {
    const char *when = getenv("LOSE_DEVICE_WHEN");
    const char *once = getenv("LOSE_DEVICE_ONCE");
    if (when && once && access(when, F_OK) == 0) {
        int file = open(once, O_CREAT | O_EXCL | O_WRONLY, 0600);
        if (file >= 0) {
            close(file);
            atomic_store(&lost, 1);
        }
    }
    return atomic_load(&lost);
}

static int submit(void *queue, uint32_t count, const void *infos, uint64_t fence) {
    return is_lost() ? DEVICE_LOST : next_submit(queue, count, infos, fence);
}

static int submit2(void *queue, uint32_t count, const void *infos, uint64_t fence) {
    return is_lost() ? DEVICE_LOST : next_submit2(queue, count, infos, fence);
}

static int submit2_khr(void *queue, uint32_t count, const void *infos, uint64_t fence) {
    return is_lost() ? DEVICE_LOST : next_submit2_khr(queue, count, infos, fence);
}

/* The part of the chain that the loader has left for this layer, moved on for the next one. */
static struct link *take_link(const struct create_info *info, int type) {
    const struct create_info *part = info->next;
    for (; part; part = part->next) {
        struct loader_info *loader = (struct loader_info *)part;
        if (part->type == type && loader->function == LINK) {
            struct link *link = loader->link;
            loader->link = link->next;
            return link;
        }
    }
    return NULL;
}

static int create_instance(const struct create_info *info, const void *allocator, void **made) {
    struct link *link = take_link(info, LOADER_INSTANCE);
    if (!link)
        return INITIALIZATION_FAILED;
    next_of_instance = link->find_instance;
    CreateInstance create = (CreateInstance)next_of_instance(NULL, "vkCreateInstance");
    int result = create(info, allocator, made);
    if (result == SUCCESS)
        instance = *made;
    return result;
}

static int create_device(void *gpu, const struct create_info *info, const void *allocator, void **made) {
    struct link *link = take_link(info, LOADER_DEVICE);
    if (!link)
        return INITIALIZATION_FAILED;
    next_of_device = link->find_device;
    CreateDevice create = (CreateDevice)link->find_instance(instance, "vkCreateDevice");
    int result = create(gpu, info, allocator, made);
    if (result == SUCCESS) {
        next_submit = (Submit)next_of_device(*made, "vkQueueSubmit");
        next_submit2 = (Submit)next_of_device(*made, "vkQueueSubmit2");
        next_submit2_khr = (Submit)next_of_device(*made, "vkQueueSubmit2KHR");
    }
    return result;
}

static Function find_device(void *device, const char *name) {
    if (!strcmp(name, "vkGetDeviceProcAddr"))
        return (Function)find_device;
    if (!strcmp(name, "vkQueueSubmit"))
        return (Function)submit;
    if (!strcmp(name, "vkQueueSubmit2") && next_of_device(device, name))
        return (Function)submit2;
    if (!strcmp(name, "vkQueueSubmit2KHR") && next_of_device(device, name))
        return (Function)submit2_khr;
    return next_of_device(device, name);
}

static Function find_instance(void *of, const char *name) {
    if (!strcmp(name, "vkGetInstanceProcAddr"))
        return (Function)find_instance;
    if (!strcmp(name, "vkCreateInstance"))
        return (Function)create_instance;
    if (!strcmp(name, "vkCreateDevice"))
        return (Function)create_device;
    if (!strcmp(name, "vkGetDeviceProcAddr"))
        return (Function)find_device;
    if (!strcmp(name, "vkQueueSubmit"))
        return (Function)submit;
    return next_of_instance ? next_of_instance(of, name) : NULL;
}

EXPORTED int vkNegotiateLoaderLayerInterfaceVersion(struct interface *interface) {
    if (interface->version < 2)
        return INITIALIZATION_FAILED;
    interface->version = 2;
    interface->find_instance = find_instance;
    interface->find_device = find_device;
    interface->find_physical_device = NULL;
    return SUCCESS;
}
