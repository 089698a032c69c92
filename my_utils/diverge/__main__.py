from my_utils.diverge.compare import main

raise SystemExit(main())
