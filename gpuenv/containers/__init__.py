"""The common ground of everything gpuenv starts: ``run``, ``jupyter`` and ``ssh``.

A launch is decided first and done afterwards:

1. ``identity`` has names, labels and who owns what. Labels are the truth, names a convenience;
   ``identity_of`` reads a container back.
2. ``facts`` asks the world once: who calls, whose a folder is, whether a port is free.
3. ``gpus``, ``users``, ``limits`` and ``mounts`` are pure decisions, each with its reason.
4. ``plan`` puts them together: ``plan_container`` takes a ``ContainerWish`` and ``LaunchFacts`` and
   returns a ``ContainerPlan``. A kind (Jupyter, SSH) gives it a command, a port and files with
   ``ContainerPlan.adding``.
5. ``lifecycle`` acts: ``start_planned`` and ``start_on_free_port`` (make the volumes and the
   container, put the files and the passwd line in, start, fall back where the engine may not set a
   ulimit, look for the GPU inside), ``find_environment``, ``list_environments``,
   ``select_environments`` and the removal. Whatever interrupts a launch, nothing of it stays.
6. ``ready`` waits until something answers, with the container's logs in the error.
7. ``files`` is the private folder of one environment: token, host key, and the lock that a command
   holds while it starts or changes the environment.

Nothing here prints: what a user must hear travels as ``plan.Note``.
"""
