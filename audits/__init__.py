from fedaudit.machinery.old_names import one_module

one_module(__name__)
